"""Raw recordings to tensors: readers, the Spark job, the loader and the synthetic city."""
