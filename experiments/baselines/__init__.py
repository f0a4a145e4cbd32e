"""Methods to compare with, one file each, with the front doors' signatures."""
