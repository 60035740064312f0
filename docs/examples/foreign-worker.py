"""A worker that knows only the task queue and the bus: what any language with an AWS SDK needs to do.

    python foreign-worker.py                 # takes tasks until it is stopped
    python foreign-worker.py job TENANT JOB  # emits `Job Created`: that alone makes a job

Needs boto3 and the usual AWS environment. LEDGERLINE_STAGE says which stage; `local` is local mode's.
"""

import json, os, socket, sys, time, uuid

import boto3

STAGE, ME = os.environ.get("LEDGERLINE_STAGE", "local"), f"python-{socket.gethostname()}-{os.getpid()}"
bus, sqs, s3 = boto3.client("events"), boto3.client("sqs"), boto3.client("s3")

# What it can run: from the input to the output.
TASKS = {
    "scrape-store": lambda given: {"store": given["storeId"], "colors": ["teal", "sand"]},
    "color-tags": lambda given: {"style": given["style"], "of": given["dependencyOutputs"]["task-A"]["colors"]},
    "compile-result": lambda given: {"parts": given["dependencyOutputs"]},
}
JOB = [
    {"taskId": "task-A", "name": "scrape-store", "dependsOn": [], "input": {"storeId": "store-123"}},
    {"taskId": "task-C", "name": "color-tags", "dependsOn": ["task-A"], "input": {"style": "modern"}},
    {"taskId": "task-E", "name": "compile-result", "dependsOn": ["task-A", "task-C"], "input": {}},
]


def emit(tenant, app, kind, about, properties, context):
    ms = int(time.time() * 1000)
    at, whose, by, what = f"TIMESTAMP#{ms}", f"TENANT#{tenant}", f"APP#{app}", f"EVENT#{kind}"
    entity_type, entity_id = about.split("#")
    event = {"PK": whose, "SK": f"{at}#EVENT#{uuid.uuid4()}", "GSI1PK": about, "GSI1SK": f"{entity_type}#{at}",
             "GSI2PK": by, "GSI2SK": at, "GSI3PK": by, "GSI3SK": f"{about}#{at}",
             "GSI4PK": what, "GSI4SK": f"{whose}#{at}", "GSI5PK": what, "GSI5SK": f"{whose}#{about}#{at}",
             "GSI6PK": what, "GSI6SK": f"{whose}#{by}#{at}", "GSI7PK": what, "GSI7SK": f"{whose}#{by}#{about}#{at}",
             "entityId": entity_id, "entityType": entity_type, "tenantId": tenant, "eventType": kind,
             "timestamp": ms, "context": context, "properties": properties}
    entry = {"EventBusName": f"ledgerline-{STAGE}", "Source": f"task-workflow.{app}", "DetailType": "log-event"}
    answer = bus.put_events(Entries=[{**entry, "Detail": json.dumps(event)}])
    assert answer["FailedEntryCount"] == 0, answer  # the message stays, and comes again


def run(task, attempt):
    context = {**task["context"], "origin": "foreign-worker", "workerId": ME, "attempt": attempt}
    whose = {"requestId": task["requestId"], **({"jobId": task["jobId"]} if "jobId" in task else {})}
    tell = lambda kind, properties: emit(
        task["tenantId"], task["appName"], kind, f"TASK#{task['requestId']}", {**whose, **properties}, context)
    began = time.time()
    tell("Task Processing Started",
         {"effectiveUntil": int(began) + 90, "workerId": ME, "processId": os.getpid()})
    try:
        large = task.get("inputRef")  # over 200 KB it lies in S3
        given = json.load(s3.get_object(Bucket=large["bucket"], Key=large["key"])["Body"]) if large else task["input"]
        output = TASKS[task["name"]](given)
    except (KeyError, TypeError, ValueError) as error:
        return tell("Task Failed", {"error": repr(error), "errorCategory": "programming", "retryCount": attempt,
                                    "source": "worker"})
    tell("Task Completed", {"output": output, "durationMs": int((time.time() - began) * 1000), "exitCode": 0})


if sys.argv[1:2] == ["job"]:
    _, _, tenant, job = sys.argv
    emit(tenant, "foreign", "Job Created", f"JOB#{job}",
         {"jobId": job, "requestId": job, "tasks": JOB, "totalTasks": len(JOB)}, {"origin": "foreign-worker"})
    sys.exit()
queue = sqs.get_queue_url(QueueName=f"{STAGE}-tasks")["QueueUrl"]
while True:
    taken = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20, MessageSystemAttributeNames=["ApproximateReceiveCount"])
    for message in taken.get("Messages", []):
        task = json.loads(message["Body"])
        if task["name"] in TASKS:  # else it is for another worker
            run(task, int(message["Attributes"]["ApproximateReceiveCount"]))
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
