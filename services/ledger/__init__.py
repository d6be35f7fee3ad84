"""The ledger: a Faust application that sums the figures of requests by time window, and publishes the sums.

It reads accounts and receipts. An account summarises a closed request. A receipt records what was sent to a
client on one connection.
"""
