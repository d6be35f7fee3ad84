"""The edge accepts requests over HTTP and websockets, and delivers answers from the stream log.

The stream log is the topic ``railbus.streams``. It has all events about answers.
"""
