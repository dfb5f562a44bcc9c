"""The run folder: rows, files, version; the only room that reads or writes one."""

from roundoff.runs.files.columns import EventColumns, HashColumns, Interned, ParameterColumns
from roundoff.runs.files.folder import (
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
from roundoff.runs.files.plain_json import JsonValue, to_json
from roundoff.runs.files.schema import EVENTS, HASHES, HISTOGRAM_LENGTH, PARAMETERS, SKETCH_LENGTH, TABLES
from roundoff.runs.files.tensor_file import TensorEntry, TensorFile
from roundoff.runs.files.tensor_writer import TensorWriter
from roundoff.runs.flight import Flight, FlightRecord, FlightRecorder, read_flight, read_heartbeat
from roundoff.runs.listing import RunSummary, UnreadableRun, list_runs, sampled_metrics
from roundoff.runs.reader import CachedRun, Run
from roundoff.runs.records.call import Call
from roundoff.runs.records.event import Event, EventKey, shape_from_text, shape_to_text
from roundoff.runs.records.failure import Failure, failures_line
from roundoff.runs.records.finding import RULE_FAILED, Answer, Finding, RuleAnswer, Severity, order_findings
from roundoff.runs.records.info import Ending, RunInfo, sketches_line_up
from roundoff.runs.records.metrics import Anomaly, AnomalyKind, MemoryLook, Metrics
from roundoff.runs.records.replay_info import Origin, ReplayInfo
from roundoff.runs.records.training_facts import (
    BatchFacts,
    ModuleFacts,
    OptimizerFacts,
    ParameterFacts,
    Structure,
    TensorFacts,
)
from roundoff.runs.writer import RecordingStoppedWarning, RunWriter

__all__ = [
    "EVENTS",
    "HASHES",
    "HISTOGRAM_LENGTH",
    "PARAMETERS",
    "READABLE_BY",
    "RULE_FAILED",
    "SKETCH_LENGTH",
    "TABLES",
    "VERSION",
    "Anomaly",
    "AnomalyKind",
    "Answer",
    "BatchFacts",
    "CachedRun",
    "Call",
    "Ending",
    "Event",
    "EventColumns",
    "EventKey",
    "Failure",
    "Finding",
    "Flight",
    "FlightRecord",
    "FlightRecorder",
    "HashColumns",
    "Interned",
    "JsonValue",
    "MemoryLook",
    "Metrics",
    "ModuleFacts",
    "OptimizerFacts",
    "Origin",
    "ParameterColumns",
    "ParameterFacts",
    "RecordingStoppedWarning",
    "ReplayInfo",
    "RuleAnswer",
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
    "failures_line",
    "flight_path",
    "list_runs",
    "memcheck_path",
    "native_crash_path",
    "next_free_name",
    "order_findings",
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
