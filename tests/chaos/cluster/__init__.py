"""A test under load: two processes of each service, three nodes of Apache Kafka, and a fault every few seconds.

At the end, the records on Kafka and the bytes that clients received are checked. The code that checks them uses neither
the product's fold nor its Kafka clients.
"""
