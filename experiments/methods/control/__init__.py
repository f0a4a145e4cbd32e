"""Signal controllers to compare with: drivers that the session steps once a second, and methods that learn."""
