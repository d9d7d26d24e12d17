"""What a user can put right: reported as one line on stderr, with exit status 2."""


class InputError(Exception):
    """An option, file or data row that cannot be used; the message says which one and what to do about it."""
