"""The part of the Kubernetes API that the manifests use, as JSON Schema.

Field names, types and bounds are those of the API reference, version 1.31: batch/v1 Job, core/v1 PodTemplateSpec, Container,
Volume and ConfigMap. Objects are closed, as for a server that validates fields strictly: a misspelt field is an error. Fields
of objects that no manifest needs are left out, so a new one must be added here.
"""

DNS_LABEL = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"}
COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
LABELS = {"type": "object", "additionalProperties": {
    "type": "string", "maxLength": 63, "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"}}


def closed(required, **properties):
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def list_of(items, least=0):
    return {"type": "array", "items": items, "minItems": least}


METADATA = closed(["name"], name=DNS_LABEL, namespace=DNS_LABEL, labels=LABELS, annotations=LABELS)
RESOURCES = {"type": "object", "additionalProperties": QUANTITY}

CONTAINER = closed(
    ["name", "image"],
    name=DNS_LABEL,
    image={"type": "string", "minLength": 1},
    imagePullPolicy={"enum": ["Always", "Never", "IfNotPresent"]},
    command=list_of({"type": "string"}),
    args=list_of({"type": "string"}),
    workingDir={"type": "string"},
    env=list_of(closed(["name"], name={"type": "string"}, value={"type": "string"}, valueFrom={"type": "object"})),
    resources=closed([], requests=RESOURCES, limits=RESOURCES),
    volumeMounts=list_of(closed(["name", "mountPath"], name=DNS_LABEL,
                                mountPath={"type": "string", "pattern": "^[^:]+$"}, readOnly={"type": "boolean"},
                                subPath={"type": "string"})),
)
VOLUME = {
    **closed(["name"], name=DNS_LABEL,
             persistentVolumeClaim=closed(["claimName"], claimName=DNS_LABEL, readOnly={"type": "boolean"}),
             configMap=closed([], name=DNS_LABEL, defaultMode=COUNT, optional={"type": "boolean"})),
    "minProperties": 2, "maxProperties": 2,  # the name and one source
}
POD = closed(
    ["restartPolicy", "containers"],
    # Of the three policies of pods, a Job's template takes two.
    restartPolicy={"enum": ["Never", "OnFailure"]},
    containers=list_of(CONTAINER, 1),
    volumes=list_of(VOLUME),
    terminationGracePeriodSeconds=COUNT,
    nodeSelector=LABELS,
    serviceAccountName=DNS_LABEL,
)
FAILURE_RULE = {
    **closed(["action"],
             action={"enum": ["FailJob", "FailIndex", "Ignore", "Count"]},
             onExitCodes=closed(["operator", "values"], containerName=DNS_LABEL, operator={"enum": ["In", "NotIn"]},
                                values={**list_of({"type": "integer"}, 1), "maxItems": 255, "uniqueItems": True}),
             onPodConditions=list_of(closed(["type", "status"], type={"type": "string"}, status={"type": "string"}))),
    "oneOf": [{"required": ["onExitCodes"]}, {"required": ["onPodConditions"]}],
}
JOB_SPEC = {
    **closed(
        ["template"],
        parallelism=COUNT, completions=COUNT, backoffLimit=COUNT, backoffLimitPerIndex=COUNT, maxFailedIndexes=COUNT,
        activeDeadlineSeconds={"type": "integer", "minimum": 1}, ttlSecondsAfterFinished=COUNT,
        completionMode={"enum": ["NonIndexed", "Indexed"]}, suspend={"type": "boolean"},
        podFailurePolicy=closed(["rules"], rules={**list_of(FAILURE_RULE), "maxItems": 20}),
        template=closed(["spec"], metadata=closed([], labels=LABELS, annotations=LABELS), spec=POD),
    ),
    # "completionMode=Indexed requires completions"; parallelism is at most 100,000 for it.
    "if": {"properties": {"completionMode": {"const": "Indexed"}}, "required": ["completionMode"]},
    "then": {"required": ["completions"], "properties": {"parallelism": {"maximum": 100_000}}},
    # A pod failure policy needs restartPolicy Never.
    "dependentSchemas": {"podFailurePolicy": {"properties": {"template": {"properties": {"spec": {"properties": {
        "restartPolicy": {"const": "Never"}}}}}}}},
}
JOB = closed(["apiVersion", "kind", "metadata", "spec"], apiVersion={"const": "batch/v1"}, kind={"const": "Job"},
             metadata=METADATA, spec=JOB_SPEC)
CONFIG_MAP = closed(["apiVersion", "kind", "metadata"], apiVersion={"const": "v1"}, kind={"const": "ConfigMap"},
                    metadata=METADATA, data={
                        "type": "object", "additionalProperties": {"type": "string"},
                        "propertyNames": {"pattern": "^[-._a-zA-Z0-9]+$", "maxLength": 253}})
LIST = closed(["apiVersion", "kind", "items"], apiVersion={"const": "v1"}, kind={"const": "List"},
              items=list_of({"oneOf": [JOB, CONFIG_MAP]}, 1))
