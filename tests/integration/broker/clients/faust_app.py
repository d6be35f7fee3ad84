"""Read words from one topic, count them in a Faust table, and write each new count to another topic.

Usage: faust_app.py BROKER ID DATA_DIR worker --without-web
"""

import sys

import faust

broker, app_id, data_dir = sys.argv[1:4]
app = faust.App(
    app_id, broker=f"kafka://{broker}", datadir=data_dir, store="memory://", topic_partitions=2,
    consumer_auto_offset_reset="earliest", producer_acks=-1,
)  # fmt: skip
words = app.topic(f"{app_id}-words", key_type=bytes, value_type=bytes, value_serializer="raw")
counts = app.topic(f"{app_id}-counts", key_type=bytes, value_type=bytes, value_serializer="raw")
table = app.Table("seen", key_type=str, value_type=int, default=int, partitions=2)


@app.agent(words)
async def count(stream) -> None:
    async for word in stream:
        table[word.decode()] += 1
        await counts.send(key=word, value=str(table[word.decode()]).encode())


if __name__ == "__main__":
    del sys.argv[1:4]
    app.main()
