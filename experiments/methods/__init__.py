"""The methods that are compared, a file each."""
