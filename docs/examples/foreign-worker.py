"""A worker that knows only the task queue and the bus: all that a language with an AWS SDK needs to do.

    python foreign-worker.py                 # takes tasks until it is stopped
    python foreign-worker.py job TENANT JOB  # emits `Job Created`: that alone makes a job

Needs boto3 and the usual AWS environment. LEDGERLINE_STAGE is the stage; that of local mode is `local`.
"""

import json, os, socket, sys, time, uuid

import boto3

STAGE, ME = os.environ.get("LEDGERLINE_STAGE", "local"), f"python-{socket.gethostname()}-{os.getpid()}"
bus, sqs, s3 = boto3.client("events"), boto3.client("sqs"), boto3.client("s3")

TASKS = {  # what it can run: from the input to the output
    "scrape-store": lambda given: {"store": given["storeId"], "colors": ["teal", "sand"]},
    "color-tags": lambda given: {"style": given["style"], "of": given["dependencyOutputs"]["task-A"]["colors"]},
    "compile-result": lambda given: {"parts": given["dependencyOutputs"]},
}


def emit(tenant, app, kind, entity_type, entity_id, properties, context):
    ms = int(time.time() * 1000)
    at, whose, by, what = f"TIMESTAMP#{ms}", f"TENANT#{tenant}", f"APP#{app}", f"EVENT#{kind}"
    about = f"{entity_type}#{entity_id}"
    event = {
        "PK": whose, "SK": f"{at}#EVENT#{uuid.uuid4()}", "GSI1PK": about, "GSI1SK": f"{entity_type}#{at}",
        "GSI2PK": by, "GSI2SK": at, "GSI3PK": by, "GSI3SK": f"{about}#{at}",
        "GSI4PK": what, "GSI4SK": f"{whose}#{at}", "GSI5PK": what, "GSI5SK": f"{whose}#{about}#{at}",
        "GSI6PK": what, "GSI6SK": f"{whose}#{by}#{at}", "GSI7PK": what, "GSI7SK": f"{whose}#{by}#{about}#{at}",
        "entityId": entity_id, "entityType": entity_type, "tenantId": tenant, "eventType": kind,
        "timestamp": ms, "context": context, "properties": properties,
    }
    entry = {"EventBusName": f"ledgerline-{STAGE}", "Source": f"task-workflow.{app}", "DetailType": "log-event"}
    answer = bus.put_events(Entries=[{**entry, "Detail": json.dumps(event)}])
    assert answer["FailedEntryCount"] == 0, answer


def run(task, attempt):
    """Whatever is raised here, the message stays, and comes again when it is not hidden any more."""
    ids = {name: task[name] for name in ("requestId", "jobId") if name in task}
    context = {**task["context"], "origin": "foreign-worker", "workerId": ME, "attempt": attempt}
    tell = lambda kind, **properties: emit(
        task["tenantId"], task["appName"], kind, "TASK", task["requestId"], {**ids, **properties}, context
    )
    began = time.time()
    tell("Task Processing Started", effectiveUntil=int(began) + 90, workerId=ME, processId=os.getpid())
    if large := task.get("inputRef"):
        given = json.load(s3.get_object(Bucket=large["bucket"], Key=large["key"])["Body"])
    else:
        given = task["input"]
    try:
        output = TASKS[task["name"]](given)
    except (KeyError, TypeError) as error:  # no other attempt would fare better
        failure = {"error": repr(error), "errorCategory": "programming", "retryCount": attempt, "source": "worker"}
        return tell("Task Failed", **failure)
    tell("Task Completed", output=output, durationMs=int((time.time() - began) * 1000), exitCode=0)


def work():
    queue = sqs.get_queue_url(QueueName=f"{STAGE}-tasks")["QueueUrl"]
    count = "ApproximateReceiveCount"
    while True:
        taken = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20, MessageSystemAttributeNames=[count])
        for message in taken.get("Messages", []):
            task = json.loads(message["Body"])
            if task["name"] in TASKS:  # what it cannot run is left to other workers
                run(task, int(message["Attributes"][count]))
                sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def create_job(tenant, job_id):
    tasks = [
        {"taskId": "task-A", "name": "scrape-store", "dependsOn": [], "input": {"storeId": "store-123"}},
        {"taskId": "task-C", "name": "color-tags", "dependsOn": ["task-A"], "input": {"style": "modern"}},
        {"taskId": "task-E", "name": "compile-result", "dependsOn": ["task-A", "task-C"], "input": {}},
    ]
    properties = {"jobId": job_id, "requestId": job_id, "tasks": tasks, "totalTasks": len(tasks)}
    emit(tenant, "shop", "Job Created", "JOB", job_id, properties, {"origin": "foreign-producer"})


work() if len(sys.argv) == 1 else create_job(*sys.argv[2:])
