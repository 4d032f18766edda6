#!/usr/bin/env python3
"""Checks an export of `azekura trace report --format perfetto` against Perfetto's own schema.

    pip install perfetto
    azekura trace report before.trace --format perfetto -o before.perfetto
    scripts/check-perfetto.py before.perfetto [NUMBER OF SLICES]

The file is parsed with the messages of Perfetto's Python package, which are made from its published .proto
files. Every field must be known there. Every event must be on a track that was described before, with a
process and a thread. Times on a track must not decrease. Slices must nest and have names, and their number
must be the given one. Each flow must lead from one instant to the later end of one slice of another track.
"""

import sys
from collections import defaultdict

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema


def fail(what):
    sys.exit(f"not well: {what}")


def known(message, path=""):
    """Fails on a field that the schema does not know."""
    again = type(message)()
    again.CopyFrom(message)
    again.DiscardUnknownFields()
    if again.ByteSize() != message.ByteSize():
        fail(f"a field that the schema does not know, in {path or message.DESCRIPTOR.name}")


def main():
    trace = schema.Trace()
    with open(sys.argv[1], "rb") as file:
        trace.ParseFromString(file.read())
    known(trace)
    event_type = schema.TrackEvent.Type
    processes, threads, depth, last = {}, {}, defaultdict(int), defaultdict(int)
    slices = instants = 0
    flows = defaultdict(list)
    tables = ["event_names", "event_categories", "debug_annotation_names", "debug_annotation_string_values"]
    interned = {table: {} for table in tables}
    for number, packet in enumerate(trace.packet):
        if not packet.HasField("timestamp") or not packet.trusted_packet_sequence_id:
            fail(f"packet {number} without time or sequence")
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            if track.HasField("thread"):
                if track.parent_uuid not in processes:
                    fail(f"thread track {track.uuid} without a process")
                if not track.thread.HasField("tid") or track.thread.pid != processes[track.parent_uuid]:
                    fail(f"thread track {track.uuid} without its thread")
                threads[track.uuid] = track.thread.tid
            else:
                processes[track.uuid] = track.process.pid
            continue
        if not packet.HasField("track_event"):
            fail(f"packet {number} is neither a track nor an event")
        for table, texts in interned.items():
            for entry in getattr(packet.interned_data, table):
                if entry.iid in texts:
                    fail(f"packet {number}: a second text for number {entry.iid} of {table}")
                texts[entry.iid] = entry.str if table == tables[-1] else entry.name
        event = packet.track_event
        track = event.track_uuid
        if track not in threads:
            fail(f"packet {number}: an event on a track that was not described")
        if packet.timestamp < last[track]:
            fail(f"packet {number}: time runs back")
        last[track] = packet.timestamp
        for flow in event.flow_ids:
            flows[flow].append((packet.timestamp, event.type, track))
        if event.type == event_type.TYPE_SLICE_BEGIN:
            depth[track] += 1
            slices += 1
        elif event.type == event_type.TYPE_SLICE_END:
            depth[track] -= 1
            if depth[track] < 0:
                fail(f"packet {number}: the end of a slice that did not begin")
            continue
        elif event.type == event_type.TYPE_INSTANT:
            instants += 1
        else:
            fail(f"packet {number}: type {event.type}")
        if not interned["event_names"].get(event.name_iid) or not list(event.category_iids):
            fail(f"packet {number}: an event without name or category")
        used = [("event_categories", iid) for iid in event.category_iids]
        used += [("debug_annotation_names", note.name_iid) for note in event.debug_annotations]
        used += [("debug_annotation_string_values", note.string_value_iid)
                 for note in event.debug_annotations if note.HasField("string_value_iid")]
        for table, iid in used:
            if iid not in interned[table]:
                fail(f"packet {number}: number {iid} of {table} was not interned")
    if len(sys.argv) > 2 and slices != int(sys.argv[2]):
        fail(f"{slices} slices and not {sys.argv[2]}")
    for flow, ends in flows.items():
        ends.sort()
        types = [end[1] for end in ends]
        if types != [event_type.TYPE_INSTANT, event_type.TYPE_SLICE_END] or ends[0][2] == ends[1][2]:
            fail(f"flow {flow} does not lead from a release to the end of a wait: {ends}")
    still_open = sum(depth.values())
    print(f"well: {len(threads)} threads, {slices} slices ({still_open} still open), {instants} instants, "
          f"{len(flows)} flows")


if __name__ == "__main__":
    main()
