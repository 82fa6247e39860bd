"""The one error of this package."""


class Refused(Exception):
    """A file or request that cannot be served; the message is one sentence for the user."""
