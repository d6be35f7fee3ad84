"""The ledger: a Faust application that keeps the books of the accounts and receipts, and publishes their windows."""
