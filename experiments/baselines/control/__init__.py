"""Signal controllers without learning, each a driver that the session steps once a second."""
