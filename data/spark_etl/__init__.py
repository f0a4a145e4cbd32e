"""The PySpark job: raw GPS, trips or sensors to sharded cells x steps tensors."""
