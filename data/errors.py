"""The one exception that bad input raises: a sentence saying what is wrong and what to do."""


class DataError(ValueError):
    """Input that cannot be used; the message names the file and the remedy, and is shown to the user as it is."""
