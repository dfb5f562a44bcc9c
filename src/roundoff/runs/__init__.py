"""The run folder: rows, files, version; the only room that reads or writes one."""

from roundoff.runs.anomaly import Anomaly, AnomalyKind
from roundoff.runs.batch_facts import BatchFacts, TensorFacts
from roundoff.runs.call import Call
from roundoff.runs.columns import EventColumns, HashColumns, Interned, ParameterColumns
from roundoff.runs.ending import Ending
from roundoff.runs.event import Event, EventKey, shape_from_text, shape_to_text
from roundoff.runs.finding import Finding, Severity, ordered
from roundoff.runs.flight import FlightRecorder
from roundoff.runs.flight_reader import Flight, FlightRecord, read_flight, read_heartbeat
from roundoff.runs.folder import (
    READABLE_BY,
    VERSION,
    batch_path,
    crash_path,
    ending_path,
    flight_path,
    memcheck_path,
    native_crash_path,
    next_free_name,
    perturbed_path,
    replay_path,
)
from roundoff.runs.info import RunInfo, sketches_line_up
from roundoff.runs.kept_run import KeptRun
from roundoff.runs.listing import RunSummary, UnreadableRun, list_runs
from roundoff.runs.memory import MemoryLook
from roundoff.runs.metrics import Metrics
from roundoff.runs.mirror import MirrorStoppedWarning
from roundoff.runs.plain_json import JsonValue, to_json
from roundoff.runs.reader import Run
from roundoff.runs.replay_info import Origin, ReplayInfo
from roundoff.runs.sampled_metrics import sampled_metrics
from roundoff.runs.schema import EVENTS, HASHES, HISTOGRAM_LENGTH, PARAMETERS, SKETCH_LENGTH, TABLES
from roundoff.runs.structure import ModuleFacts, OptimizerFacts, ParameterFacts, Structure
from roundoff.runs.tensor_file import TensorEntry, TensorFile
from roundoff.runs.tensor_writer import TensorWriter
from roundoff.runs.writer import RecordingStoppedWarning, RunWriter

__all__ = [
    "EVENTS",
    "HASHES",
    "HISTOGRAM_LENGTH",
    "PARAMETERS",
    "READABLE_BY",
    "SKETCH_LENGTH",
    "TABLES",
    "VERSION",
    "Anomaly",
    "AnomalyKind",
    "BatchFacts",
    "Call",
    "Ending",
    "Event",
    "EventColumns",
    "EventKey",
    "Finding",
    "Flight",
    "FlightRecord",
    "FlightRecorder",
    "HashColumns",
    "Interned",
    "JsonValue",
    "KeptRun",
    "MemoryLook",
    "Metrics",
    "MirrorStoppedWarning",
    "ModuleFacts",
    "OptimizerFacts",
    "Origin",
    "ParameterColumns",
    "ParameterFacts",
    "RecordingStoppedWarning",
    "ReplayInfo",
    "Run",
    "RunInfo",
    "RunSummary",
    "RunWriter",
    "Severity",
    "Structure",
    "TensorEntry",
    "TensorFacts",
    "TensorFile",
    "TensorWriter",
    "UnreadableRun",
    "batch_path",
    "crash_path",
    "ending_path",
    "flight_path",
    "list_runs",
    "memcheck_path",
    "native_crash_path",
    "next_free_name",
    "ordered",
    "perturbed_path",
    "read_flight",
    "read_heartbeat",
    "replay_path",
    "sampled_metrics",
    "shape_from_text",
    "shape_to_text",
    "sketches_line_up",
    "to_json",
]
