"""A deployed stack, a Slack on loopback, and events as their senders put them together: what the checks stand on."""

import datetime
import html
import json
import os
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
from boto3.dynamodb.conditions import Key

WAIT_SECONDS = 60
# What the stream wakes is done within seconds…
PROMPT_SECONDS = 20
# …and the dispatcher sweeps every two minutes; half of that again for a slow machine.
SWEEP_SECONDS = 180

APP = "task-workflow"


def event_of(tenant, kind, entity_type, entity, timestamp, event_id, properties, context=None):
    """An event as its sender puts it together, with all its keys."""
    about, app, whose = f"{entity_type}#{entity}", f"APP#{APP}", f"TENANT#{tenant}"
    at = f"TIMESTAMP#{timestamp}"
    return {
        "PK": whose,
        "SK": f"{at}#EVENT#{event_id}",
        "GSI1PK": about,
        "GSI1SK": f"{entity_type}#{at}",
        "GSI2PK": app,
        "GSI2SK": at,
        "GSI3PK": app,
        "GSI3SK": f"{about}#{at}",
        "GSI4PK": f"EVENT#{kind}",
        "GSI4SK": f"{whose}#{at}",
        "GSI5PK": f"EVENT#{kind}",
        "GSI5SK": f"{whose}#{about}#{at}",
        "GSI6PK": f"EVENT#{kind}",
        "GSI6SK": f"{whose}#{app}#{at}",
        "GSI7PK": f"EVENT#{kind}",
        "GSI7SK": f"{whose}#{app}#{about}#{at}",
        "entityId": entity,
        "entityType": entity_type,
        "tenantId": tenant,
        "eventType": kind,
        "timestamp": timestamp,
        "context": context or {"source": "system", "environment": "test", "origin": "test_pipeline"},
        "properties": properties,
    }


def event_now(tenant, kind, entity_type, entity, properties):
    """An event of this moment, with an id of its own."""
    return event_of(tenant, kind, entity_type, entity, int(time.time() * 1000), str(uuid.uuid4()), properties)


def id_of(event):
    return event["SK"].rsplit("#", 1)[1]


class Slack:
    """A webhook on loopback that keeps what it is sent."""

    def __init__(self):
        self.texts = []
        received = self.texts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                # As a person reads it.
                received.append(html.unescape(json.loads(body)["text"]))
                self.send_response(200)
                self.send_header("content-type", "text/plain")
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/services/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def heard(self, *words):
        """A single message that has all the words."""
        return next((text for text in self.texts if all(word in text for word in words)), None)


class Stack:
    def __init__(self, stage, cli, program):
        self.stage = stage
        self.cli = cli
        self.program = program
        stacks = boto3.client("cloudformation").describe_stacks(StackName=f"ledgerline-{stage}")["Stacks"]
        self.outputs = {o["OutputKey"]: o["OutputValue"] for o in stacks[0]["Outputs"]}
        self.dynamodb = boto3.client("dynamodb")
        self.sqs = boto3.client("sqs")
        self.bridge = boto3.client("events")
        self.s3 = boto3.client("s3")
        self.ssm = boto3.client("ssm")
        self.iam = boto3.client("iam")
        self.functions = boto3.client("lambda")
        resources = boto3.client("cloudformation").describe_stack_resources(StackName=f"ledgerline-{stage}")
        self.resources = {
            r["LogicalResourceId"]: r["PhysicalResourceId"] for r in resources["StackResources"]
        }
        self.tasks = []
        self.keys = {}
        tables = boto3.resource("dynamodb")
        self.events = tables.Table(f"events-{stage}")
        self.control = tables.Table(f"control-{stage}")

    def put(self, detail):
        moment = detail.get("timestamp")
        moment = moment / 1000 if isinstance(moment, int) else time.time()
        answer = self.bridge.put_events(
            Entries=[
                {
                    "EventBusName": f"ledgerline-{self.stage}",
                    "Source": f"task-workflow.{APP}",
                    "DetailType": "log-event",
                    "Detail": json.dumps(detail),
                    "Time": datetime.datetime.fromtimestamp(moment, datetime.timezone.utc),
                }
            ]
        )
        assert answer["FailedEntryCount"] == 0, answer

    def saved(self, event):
        key = {"PK": event["PK"], "SK": event["SK"]}
        return self.events.get_item(Key=key, ConsistentRead=True).get("Item")

    def failed_deliveries(self, tenant):
        condition = Key("PK").eq(f"FAILED#{tenant}")
        return self.control.query(KeyConditionExpression=condition, ConsistentRead=True)["Items"]

    def queue(self, url):
        return self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]

    def idle(self, url):
        attributes = self.queue(url)
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        return all(int(attributes[name]) == 0 for name in names)

    def ledgerline(self, *arguments):
        """Runs the command line; what it printed."""
        command = [self.cli, "--stage", self.stage, "--json", *arguments]
        environment = {**os.environ, "SSL_CERT_FILE": os.environ["AWS_CA_BUNDLE"]}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def key(self, tenant, scope):
        if (tenant, scope) not in self.keys:
            made = json.loads(self.ledgerline("--tenant", tenant, "keys", "create", "--scope", scope))
            self.keys[tenant, scope] = made["key"]
        return self.keys[tenant, scope]

    def take_tasks(self):
        """Takes what the task queue has, as a worker does."""
        url = self.outputs["TaskQueueUrl"]
        answer = self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=0, MessageSystemAttributeNames=["All"]
        )
        for message in answer.get("Messages", []):
            self.tasks.append({**json.loads(message["Body"]), "group": message["Attributes"].get("MessageGroupId")})
            self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    def tasks_of(self, tenant, name=None):
        """The tasks of a tenant that have come so far."""
        self.take_tasks()
        return [task for task in self.tasks if task["tenantId"] == tenant and name in (None, task["name"])]

    def api(self, method, path, tenant, body=None, expect=200):
        """Calls the HTTP API with an admin key of the tenant; the body of the answer."""
        status, _, answer = self.http(method, path, body=body, key=self.key(tenant, "admin"))
        assert status == expect, (method, path, status, answer[:1000])
        return json.loads(answer)

    def recent(self, tenant, kind):
        return self.api("GET", f"/api/events/recent?type={urllib.parse.quote(kind)}", tenant)["items"]

    def drainer(self, tenant, name="workflow_runner"):
        drainers = self.api("GET", "/api/drainers", tenant)["items"]
        (drainer,) = [drainer for drainer in drainers if drainer["drainerId"] == name]
        return drainer

    def http(self, method, path, body=None, key=None):
        """Calls the HTTP API as API Gateway would be called: its host name chooses the API."""
        headers = {"host": f"{self.outputs['ApiId']}.execute-api.localhost"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        if body is not None:
            headers["content-type"] = "application/json"
            body = json.dumps(body).encode()
        return fetch(path, data=body, headers=headers, method=method)


def fetch(path, **request):
    """Calls the local AWS: status, headers and body of the answer."""
    request = urllib.request.Request(os.environ["AWS_ENDPOINT_URL"] + path, **request)
    trust = ssl.create_default_context(cafile=os.environ["AWS_CA_BUNDLE"])
    try:
        with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.headers, answer.read()


def let_senders_send_batches(stack):
    """AWS knows no permission for SendMessageBatch: a role that may send a message may send several. The local AWS wants
    it granted by its own name, so a role that has the one in the template gets the other here, on the same queue."""
    for role in stack.iam.list_roles()["Roles"]:
        let_role_send_batches(stack, role["RoleName"])


def let_role_send_batches(stack, name):
    """The same for one role."""
    for policy, document in policies_of(stack, name):
        batches = [
            {"Effect": "Allow", "Action": "sqs:SendMessageBatch", "Resource": statement["Resource"]}
            for statement in document["Statement"]
            if statement["Action"] in ("sqs:SendMessage", ["sqs:SendMessage"])
        ]
        if batches:
            document = {"Version": "2012-10-17", "Statement": batches}
            stack.iam.put_role_policy(
                RoleName=name, PolicyName=f"{policy}-batches", PolicyDocument=json.dumps(document)
            )


def policies_of(stack, role):
    """The policies of a role with their names: its own, and those that are attached to it."""
    for policy in stack.iam.list_role_policies(RoleName=role)["PolicyNames"]:
        yield policy, stack.iam.get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]
    for attached in stack.iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]:
        arn = attached["PolicyArn"]
        version = stack.iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
        document = stack.iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
        yield attached["PolicyName"], document


def until(what, probe, seconds=WAIT_SECONDS):
    """Calls probe until it gives something, and gives that; fails when the deadline has passed."""
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.1)
