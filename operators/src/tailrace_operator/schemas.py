"""The hand-written parts of the resources' schemas: keys that the chart's entry lacks, the status, the columns.

`crd.py` puts them together with what is derived from the chart and the configuration.
"""

from __future__ import annotations

from typing import Any

from tailrace_operator.overlay import OVERLAID, SUFFIX

Schema = dict[str, Any]

ANYTHING: Schema = {"x-kubernetes-preserve-unknown-fields": True}

# Keys of a spec that the chart's entry does not have, and those that it has and a Pipeline has otherwise.
SWITCHES: Schema = {
    "shadow": {
        "type": "object",
        "description": "A second pipeline, NAME-shadow, that reads the same input into a topic of its own, with what "
        "is changed here. Keys are merged into the spec's, at any depth; null removes one.",
        "properties": {
            **{name: {"type": "object", "description": f"What differs of `{name}`.", **ANYTHING} for name in OVERLAID},
            "topic": {
                "type": "string",
                "minLength": 1,
                "description": "The shadow's sink topic. Default: that of the spec with -shadow at its end.",
            },
            "suspend": {"type": "boolean", "description": "Let no driver of the shadow run."},
            "deletionPolicy": {
                "type": "string",
                "enum": ["Retain", "Delete"],
                "description": "What happens to the shadow's sink topic, if the operator made it, and to its topic of "
                "rejected records when the shadow ends. Default: Delete; with `topic`: Retain.",
            },
        },
    },
    "suspend": {
        "type": "boolean",
        "description": "Let no driver run. Offsets, topics and the user stay; the pipeline goes on where it was.",
    },
    "paused": {"type": "boolean", "description": "Let the operator change nothing; what runs goes on."},
    "deletionPolicy": {
        "type": "string",
        "enum": ["Retain", "Delete"],
        "description": "What happens to the topic of rejected records when the Pipeline is deleted. The ledger and "
        "other topics are kept in any case. Default: Retain.",
    },
    "waitFor": {
        "type": "array",
        "maxItems": 20,
        "description": "What has to be there before a driver starts, besides what its pods refer to.",
        "items": {
            "type": "object",
            "required": ["kind", "name"],
            "properties": {
                "kind": {"type": "string", "enum": ["Secret", "ConfigMap", "KafkaTopic", "KafkaUser"]},
                "name": {"type": "string", "minLength": 1},
                "namespace": {"type": "string", "minLength": 1, "description": "Default: the Pipeline's own."},
            },
        },
    },
}
OTHERWISE = {"name", "enabled"}
LONGEST = 39  # characters of a Pipeline's name: the chart cuts others, and the operator would not find its Deployment
_LONGEST_LIVE = LONGEST - len(SUFFIX)  # its shadow is a Pipeline too
NAME_RULES: list[Schema] = [  # of the whole resource
    {
        "rule": f"self.metadata.name.size() <= {LONGEST}",
        "message": f"the name of a Pipeline has at most {LONGEST} characters",
    },
    {
        "rule": f"!has(self.spec.shadow) || self.metadata.name.size() <= {_LONGEST_LIVE}",
        "message": f"the name of a Pipeline with a shadow has at most {_LONGEST_LIVE} characters",
    },
]
RULES: list[Schema] = [
    {
        "rule": "!has(self.shadow) || !has(self.shadow.topic) || !has(self.config.sink) || "
        "!has(self.config.sink.topic) || self.shadow.topic != self.config.sink.topic",
        "message": "shadow.topic is the live pipeline's sink topic: a shadow needs one of its own",
    },
    {
        "rule": "!has(self.shadow) || !has(self.config.checkpoint) || self.config.checkpoint == 'ledger'",
        "message": "a stateful pipeline has no shadow: its outputs depend on records before the shadow begins",
    },
    {
        "rule": "!has(self.upgrade) || self.upgrade != 'drain' || !has(self.driver) || !has(self.driver.standbys) "
        "|| self.driver.standbys == 0",
        "message": "with upgrade drain no driver waits beside another: driver.standbys must be 0",
    },
    {
        "rule": "has(self.config.source) && (has(self.config.source.topics) || has(self.config.source.pattern))",
        "message": "config.source needs topics, or a pattern",
    },
]


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _number(description: str) -> Schema:
    return {"type": "integer", "format": "int64", "description": description}


COUNTS = {
    "live": "Records of the live pipeline that were compared.",
    "shadow": "Records of the shadow that were compared.",
    "equal": "Records with the same key and value in both.",
    "different": "Records with the same key and another value.",
    "onlyLive": "Records without a partner in the shadow's topic.",
    "onlyShadow": "Records without a partner in the live topic.",
}
_CONDITION: Schema = {
    "type": "object",
    "required": ["type", "status", "reason", "lastTransitionTime"],
    "properties": {
        "type": _text("What it is about."),
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": _text("Why, in a word of docs/operator.md."),
        "message": _text("Why, with values."),
        "observedGeneration": _number("The generation of the spec that it describes."),
        "lastTransitionTime": {"type": "string", "format": "date-time"},
    },
}

STATUS: Schema = {
    "type": "object",
    "description": "What the operator observed; only the operator writes here.",
    "properties": {
        "observedGeneration": _number("The generation of the spec that this status describes."),
        "phase": _text("The pipeline's state in a word."),
        "revision": _text("The revision that is to run: that of the spec, or one that was promoted."),
        "running": _text("The revision that works; while none does, the one that drivers are made of."),
        "lastStable": _text("The newest revision that was seen to work, and to which a failed one goes back."),
        "replicas": _number("Executors that are present."),
        "selector": _text("The labels of the executors' pods, for `kubectl scale` and autoscalers."),
        "drivers": _number("Drivers' pods, those that wait for their turn included."),
        "lag": _number("Records in the source topics not yet delivered."),
        "rates": {"type": "object", "description": "Records per second.", "additionalProperties": {"type": "number"}},
        "lastBatch": {"type": "object", "description": "The batch that was delivered last.", **ANYTHING},
        "lastError": {
            "type": "object",
            "description": "Why the newest driver is not ready, or a revision was left.",
            "properties": {
                "driver": _text("Its pod."),
                "code": _text("The code of its error, for `tailrace explain`."),
                "message": _text("Its last words."),
            },
        },
        "conditions": {
            "type": "array",
            "items": _CONDITION,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
        "shadow": {
            "type": "object",
            "description": "The shadow of this pipeline, and what the last comparison counted.",
            "properties": {
                "pipeline": _text("The shadow's name."),
                "topic": _text("Its sink topic."),
                "liveTopic": _text("The sink topic that it is compared with."),
                "base": _text("The revision that the spec alone asks for."),
                "revision": _text("The revision that a promotion lets run."),
                "began": {"type": "string", "format": "date-time", "description": "When it began to read."},
                "compared": {
                    "type": "object",
                    "description": "The last comparison since the shadow began.",
                    "properties": {
                        "operation": _text("The operation that compared."),
                        "finished": {"type": "string", "format": "date-time"},
                        **{name: _number(text) for name, text in COUNTS.items()},
                    },
                },
            },
        },
        "history": {
            "type": "array",
            "description": "The last revisions, oldest first.",
            "items": {"type": "object", **ANYTHING},
        },
    },
}

SCALE: Schema = {
    "specReplicasPath": ".spec.executors.instances",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}

COLUMNS: list[Schema] = [
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Revision", "type": "string", "jsonPath": ".status.running"},
    {"name": "Executors", "type": "integer", "jsonPath": ".status.replicas", "description": "Executors present."},
    {"name": "Lag", "type": "integer", "jsonPath": ".status.lag", "description": "Records not yet delivered."},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Error", "type": "string", "jsonPath": ".status.lastError.code"},
]


OPERATION_SCHEMA: Schema = {
    "type": "object",
    "description": "A command of `tailrace` that runs once for a Pipeline; what moves offsets runs while it rests.",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["pipeline", "run"],
            "properties": {
                "pipeline": {"type": "string", "minLength": 1, "description": "The Pipeline's name."},
                "run": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 50,
                    "items": {"type": "string", "maxLength": 1000},
                    "description": "The command, without the file: [offsets, rewind, --to-time, 2026-11-20T10:00:00Z].",
                },
            },
            "x-kubernetes-validations": [
                {"rule": "self == oldSelf", "message": "an operation runs once: make another one"},
                {
                    "rule": "self.run[0] in ['offsets', 'rejected', 'shadow']",
                    "message": "run begins with offsets, rejected or shadow",
                },
            ],
        },
        "status": {
            "type": "object",
            "properties": {
                "phase": {"type": "string", "enum": ["Waiting", "Running", "Succeeded", "Failed"]},
                "message": _text("Why it waits, where its output is, or why it failed."),
                "started": {"type": "string", "format": "date-time"},
                "finished": {"type": "string", "format": "date-time"},
                "result": {"type": "object", "description": "What `shadow diff` counted.", **ANYTHING},
            },
        },
    },
}

OPERATION_COLUMNS: list[Schema] = [
    {"name": "Pipeline", "type": "string", "jsonPath": ".spec.pipeline"},
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Run", "type": "string", "jsonPath": ".spec.run"},
    {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
]
