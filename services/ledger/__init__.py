"""The ledger, a Faust application that sums accounts and receipts by time window, and publishes the sums."""
