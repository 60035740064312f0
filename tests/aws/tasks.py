"""Tasks and jobs: workers in Python and our own, dead letters, and the minute's look at what runs."""

import json
import os
import subprocess
import tempfile
import time

import boto3

from stack import APP, PROMPT_SECONDS, event_of, until

# A check each minute, and as much again for a slow machine.
CHECK_SECONDS = 120


def tell(stack, task, kind, properties, ago_ms=0):
    """Emits an event about a task as a worker does that knows only the bus."""
    now = int(time.time() * 1000) - ago_ms
    properties = {"requestId": task["requestId"], **properties}
    if "jobId" in task:
        properties["jobId"] = task["jobId"]
    context = {**task["context"], "generation": task["generation"], "origin": "python"}
    event_id = f"{task['requestId']}-{kind}-{now}"
    stack.put(event_of(task["tenantId"], kind, "TASK", task["requestId"], now, event_id, properties, context))


def run(stack, task, output):
    now = int(time.time())
    tell(stack, task, "Task Processing Started", {"effectiveUntil": now + 90, "workerId": "py-1", "processId": 1})
    tell(stack, task, "Task Completed", {"output": output, "durationMs": 1, "exitCode": 0})


def the_functions_around_tasks_are_wired(stack, slack):
    name = f"{stack.stage}-task-dlq"
    (source,) = stack.functions.list_event_source_mappings(FunctionName=name)["EventSourceMappings"]
    assert source["EventSourceArn"].endswith(f":{stack.stage}-tasks-dlq"), source
    assert (source["BatchSize"], source["FunctionResponseTypes"]) == (10, ["ReportBatchItemFailures"]), source
    queue = stack.queue(stack.outputs["TaskQueueUrl"])
    assert int(json.loads(queue["RedrivePolicy"])["maxReceiveCount"]) == 1000, queue
    assert int(queue["VisibilityTimeout"]) == 60, queue
    rule = stack.bridge.describe_rule(Name=f"{stack.stage}-health-check")
    assert (rule["ScheduleExpression"], rule["State"]) == ("cron(0/1 * * * ? *)", "ENABLED"), rule


def a_job_through_the_api_is_run_by_a_worker_that_only_polls_and_emits(stack, slack):
    tenant = "builder"
    tasks = [
        {"taskId": "a", "name": "fetch", "input": {"page": 1}},
        {"taskId": "b", "name": "fetch", "input": {"page": 2}},
        {"taskId": "c", "name": "merge", "dependsOn": ["a", "b"]},
    ]
    made = stack.api("POST", "/api/jobs", tenant, {"jobId": "job-1", "tasks": tasks}, 202)
    assert made == {"jobId": "job-1", "totalTasks": 3, "collapsed": False}, made
    waiting = lambda: {task["taskId"]: task for task in stack.tasks_of(tenant)}
    roots = until("both roots on the queue", lambda: len(waiting()) == 2 and waiting(), PROMPT_SECONDS)
    assert sorted(roots) == ["a", "b"] and roots["a"]["group"] == tenant, roots
    for task_id, task in roots.items():
        assert task["requestId"] == f"job-1:{task_id}", task
        run(stack, task, {"of": task_id})
    child = until("the child on the queue", lambda: waiting().get("c"), PROMPT_SECONDS)
    assert child["input"] == {"dependencyOutputs": {"a": {"of": "a"}, "b": {"of": "b"}}}, child
    run(stack, child, {"pages": 2})
    done = until("Job Completed in the ledger", lambda: stack.recent(tenant, "Job Completed"), PROMPT_SECONDS)
    assert len(done) == 1 and done[0]["properties"]["totalTasks"] == 3, done
    job = stack.api("GET", "/api/jobs/job-1", tenant)
    assert job["state"] == "completed", job
    listed = lambda: stack.api("GET", "/api/tasks?state=completed", tenant)["items"]
    until("three completed tasks in the list", lambda: len(listed()) == 3)
    assert len(stack.tasks_of(tenant)) == 3, stack.tasks_of(tenant)


def a_dead_letter_ends_its_task_and_what_is_no_task_stays(stack, slack):
    tenant, url = "graves", stack.outputs["TaskDeadLetterQueueUrl"]
    stack.api("POST", "/api/tasks", tenant, {"name": "nobody-runs-it", "requestId": "req-dead"}, 202)
    task = until("the task on the queue", lambda: stack.tasks_of(tenant))[0]
    task = {name: value for name, value in task.items() if name != "group"}
    for body in ("no task", json.dumps(task)):
        stack.sqs.send_message(QueueUrl=url, MessageBody=body)
    failed = until("Task Failed in the ledger", lambda: stack.recent(tenant, "Task Failed"), PROMPT_SECONDS)
    assert (failed[0]["entityId"], failed[0]["properties"]["source"]) == ("req-dead", "dlq"), failed
    # Received and not deleted: it comes again when it is not hidden any more.
    counts = lambda: [
        int(stack.queue(url)[name])
        for name in ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    ]
    until("only what is no task on the dead-letter queue", lambda: sum(counts()) == 1)
    state = lambda: stack.api("GET", "/api/tasks/req-dead", tenant)["state"]
    until("a failed task", lambda: state() == "failed", PROMPT_SECONDS)


def a_running_task_that_falls_silent_is_told_of_given_back_and_told_of_when_it_ends(stack, slack):
    tenant = "sleepy"
    stack.api("POST", "/api/tasks", tenant, {"name": "long", "requestId": "req-silent"}, 202)
    (task,) = until("the task on the queue", lambda: stack.tasks_of(tenant))
    # Six minutes ago, and held for ninety seconds from then on.
    began = int(time.time()) - 360
    started = {"effectiveUntil": began + 90, "workerId": "py-1", "processId": 1}
    tell(stack, task, "Task Processing Started", started, ago_ms=360_000)
    checks = lambda: stack.recent(tenant, "Task Health Check")
    check = until("Task Health Check in the ledger", checks, CHECK_SECONDS)[-1]
    (seen,) = check["properties"]["tasks"]
    assert (seen["requestId"], seen["health"], seen["workerId"]) == ("req-silent", "critical", "py-1"), check
    assert check["properties"]["summary"]["critical"] == 1, check
    again = until("the task on the queue again", lambda: len(stack.tasks_of(tenant)) == 2 and stack.tasks_of(tenant))
    assert again[0]["requestId"] == again[1]["requestId"], again
    until("a message in Slack", lambda: slack.heard("*critical* req-silent", f"--stage {stack.stage}"))
    tell(stack, task, "Task Completed", {"output": 1, "durationMs": 1, "exitCode": 0})
    until("the end in Slack", lambda: slack.heard("*completed* req-silent"), CHECK_SECONDS)
    minutes = [check["timestamp"] // 60_000 for check in checks()]
    assert len(minutes) == len(set(minutes)), minutes
    assert len([text for text in slack.texts if "*critical* req-silent" in text]) == 1, slack.texts
    assert len(stack.tasks_of(tenant)) == 2, "given back once"


def the_worker_of_the_command_line_needs_no_more_than_its_policy(stack, slack):
    tenant, name = "workshop", f"{stack.stage}-worker"
    us = boto3.client("sts").get_caller_identity()["Arn"]
    trust = {"Effect": "Allow", "Principal": {"AWS": us}, "Action": "sts:AssumeRole"}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    role = stack.iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    stack.iam.attach_role_policy(RoleName=name, PolicyArn=stack.outputs["WorkerPolicyArn"])
    given = boto3.client("sts").assume_role(RoleArn=role, RoleSessionName="worker")["Credentials"]
    stack.api("POST", "/api/tasks", tenant, {"name": "double", "requestId": "req-own", "input": {"n": 21}}, 202)
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/worker.toml", "w", encoding="utf-8") as file:
            file.write("[tasks.double]\ncommand = 'sed s/21/42/ > \"$LEDGERLINE_OUTPUT\"'\n")
        command = [stack.cli, "--stage", stack.stage, "worker", "--once", "--config", f"{folder}/worker.toml"]
        environment = {
            **os.environ,
            "SSL_CERT_FILE": os.environ["AWS_CA_BUNDLE"],
            "AWS_ACCESS_KEY_ID": given["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": given["SecretAccessKey"],
            "AWS_SESSION_TOKEN": given["SessionToken"],
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    completed = until(f"Task Completed after {done.stderr}", lambda: stack.recent(tenant, "Task Completed"))
    assert completed[0]["properties"]["output"] == {"n": 42}, completed
    assert completed[0]["appName"] != APP and completed[0]["context"]["attempt"] == 1, completed


CHECKS = [
    the_functions_around_tasks_are_wired,
    a_job_through_the_api_is_run_by_a_worker_that_only_polls_and_emits,
    a_dead_letter_ends_its_task_and_what_is_no_task_stays,
    a_running_task_that_falls_silent_is_told_of_given_back_and_told_of_when_it_ends,
    the_worker_of_the_command_line_needs_no_more_than_its_policy,
]
