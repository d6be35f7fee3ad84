"""The ledger, a Faust application that sums accounts and receipts by window of time, and publishes the sums."""
