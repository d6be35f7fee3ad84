"""Two of every service on three nodes of Apache Kafka, under load, with a fault every few seconds.

The topics' records and the bytes that clients received are judged, by code that knows neither the fold nor the bus.
"""
