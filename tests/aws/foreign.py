"""A producer and a worker that know only the bus and the task queue: the script of the docs, as it is there."""

import json
import os
import pathlib
import subprocess
import sys

import boto3

from stack import PROMPT_SECONDS, until

SCRIPT = pathlib.Path(__file__).parents[2] / "docs" / "examples" / "foreign-worker.py"


def credentials_of_a_foreign_worker(stack):
    """Of a role that may do what docs/tasks.md says such a worker needs, and nothing else."""
    name = f"{stack.stage}-foreign-worker"
    us = boto3.client("sts").get_caller_identity()["Arn"]
    trust = {"Effect": "Allow", "Principal": {"AWS": us}, "Action": "sts:AssumeRole"}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    role = stack.iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    may = {
        stack.outputs["TaskQueueArn"]: [
            "sqs:GetQueueUrl",
            "sqs:ReceiveMessage",
            "sqs:DeleteMessage",
            "sqs:ChangeMessageVisibility",
        ],
        stack.outputs["EventBusArn"]: ["events:PutEvents"],
        f"arn:aws:s3:::{stack.outputs['PayloadBucketName']}/tasks/*": ["s3:GetObject"],
    }
    statements = [{"Effect": "Allow", "Action": actions, "Resource": what} for what, actions in may.items()]
    document = json.dumps({"Version": "2012-10-17", "Statement": statements})
    stack.iam.put_role_policy(RoleName=name, PolicyName="work", PolicyDocument=document)
    given = boto3.client("sts").assume_role(RoleArn=role, RoleSessionName="foreign")["Credentials"]
    return {
        "AWS_ACCESS_KEY_ID": given["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": given["SecretAccessKey"],
        "AWS_SESSION_TOKEN": given["SessionToken"],
    }


def a_job_that_only_an_event_made_is_run_by_the_script_of_the_docs(stack, slack):
    tenant, job = "foreigners", "foreign-1"
    stack.take_tasks()
    environment = {**os.environ, **credentials_of_a_foreign_worker(stack), "LEDGERLINE_STAGE": stack.stage}
    command = [sys.executable, str(SCRIPT)]
    made = [*command, "job", tenant, job]
    done = subprocess.run(made, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as worker:
        try:
            completed = until(
                "Job Completed in the ledger",
                lambda: worker.poll() is not None or stack.recent(tenant, "Job Completed"),
                3 * PROMPT_SECONDS,
            )
        finally:
            worker.terminate()
            said = worker.stderr.read()
    assert completed is not True, f"the script has ended: {said}"
    assert completed[0]["properties"]["taskStatuses"] == {
        "task-A": "completed",
        "task-C": "completed",
        "task-E": "completed",
    }, completed

    def task(task_id):
        return stack.api("GET", f"/api/tasks/{job}%3A{task_id}", tenant)

    last = until("the last task completed", lambda: task("task-E")["state"] == "completed" and task("task-E"))
    store = {"store": "store-123", "colors": ["teal", "sand"]}
    tags = {"style": "modern", "of": ["teal", "sand"]}
    assert last["output"] == {"parts": {"task-A": store, "task-C": tags}}, last
    assert last["workerId"].startswith("python-") and last["attempt"] == 1, last
    assert stack.api("GET", f"/api/jobs/{job}", tenant)["state"] == "completed"


CHECKS = [a_job_that_only_an_event_made_is_run_by_the_script_of_the_docs]
