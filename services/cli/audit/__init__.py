"""What ``railbus audit`` does: fold a request again, compare receipts, search, check an archive."""
