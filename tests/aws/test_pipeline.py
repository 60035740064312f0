"""Sends events through a deployed stack and looks at what became of them.

tests/aws/run deploys the stack and calls this with AWS_ENDPOINT_URL set. One line per check; the last line is
"N passed, N failed". What takes time is waited for until a deadline.
"""

import argparse
import datetime
import html
import json
import os
import ssl
import subprocess
import sys
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
from boto3.dynamodb.conditions import Key
from botocore.exceptions import ClientError

WAIT_SECONDS = 60
# What the stream wakes is done within seconds…
PROMPT_SECONDS = 20
# …and the dispatcher sweeps every two minutes; half of that again for a slow machine.
SWEEP_SECONDS = 180

TENANT = "gbinnovations"
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


def sample_event(entity="req-123", timestamp=1767453739640, event_id="ddf71f63-b036-4ac7-ad0f-77a7fdfca352"):
    """The event that the format's description shows; of another entity, time or id if asked."""
    context = {"source": "system", "environment": "prod", "origin": "sqs-worker", "workerId": "worker-abc123"}
    properties = {"requestId": entity, "startedAt": timestamp}
    return event_of(
        TENANT, "Task Processing Started", "TASK", entity, timestamp, event_id, properties, context
    )


def event_now(tenant, kind, entity_type, entity, properties):
    """An event of this moment, with an id of its own."""
    return event_of(tenant, kind, entity_type, entity, int(time.time() * 1000), str(uuid.uuid4()), properties)


def id_of(event):
    return event["SK"].rsplit("#", 1)[1]


# How each index is asked for the sample event: partition, and what its sort key begins with.
INDEX_QUERIES = {
    "GSI1-index": ("TASK#req-123", None),
    "GSI2-index": ("APP#task-workflow", "TIMESTAMP#"),
    "GSI3-index": ("APP#task-workflow", "TASK#req-123#TIMESTAMP#"),
    "GSI4-index": ("EVENT#Task Processing Started", "TENANT#gbinnovations#TIMESTAMP#"),
    "GSI5-index": ("EVENT#Task Processing Started", "TENANT#gbinnovations#TASK#req-123#TIMESTAMP#"),
    "GSI6-index": ("EVENT#Task Processing Started", "TENANT#gbinnovations#APP#task-workflow#TIMESTAMP#"),
    "GSI7-index": (
        "EVENT#Task Processing Started",
        "TENANT#gbinnovations#APP#task-workflow#TASK#req-123#TIMESTAMP#",
    ),
}


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
    def __init__(self, stage, cli):
        self.stage = stage
        self.cli = cli
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

    def drainer(self, tenant):
        (drainer,) = self.api("GET", "/api/drainers", tenant)["items"]
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
    """AWS knows no permission for SendMessageBatch: whoever may send a message may send several. The local AWS wants
    it granted by its own name, so whoever has the one in the template is given the other here, on the same queue."""
    for role in stack.iam.list_roles()["Roles"]:
        name = role["RoleName"]
        for policy in stack.iam.list_role_policies(RoleName=name)["PolicyNames"]:
            document = stack.iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]
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


# ---- the checks, in the order in which they run ----------------------------------------------------------


def the_tables_have_the_keys_indexes_and_stream_of_the_format(stack, slack):
    table = stack.dynamodb.describe_table(TableName=stack.outputs["EventsTableName"])["Table"]
    keys = lambda schema: [(k["AttributeName"], k["KeyType"]) for k in schema]
    assert keys(table["KeySchema"]) == [("PK", "HASH"), ("SK", "RANGE")], table["KeySchema"]
    indexes = {i["IndexName"]: i for i in table["GlobalSecondaryIndexes"]}
    assert sorted(indexes) == sorted(INDEX_QUERIES), sorted(indexes)
    for name, index in indexes.items():
        prefix = name.removesuffix("-index")
        assert keys(index["KeySchema"]) == [(f"{prefix}PK", "HASH"), (f"{prefix}SK", "RANGE")], index
        assert index["Projection"]["ProjectionType"] == "ALL", index
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert table["StreamSpecification"] == {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"}
    assert table["DeletionProtectionEnabled"] is True
    control = stack.dynamodb.describe_table(TableName=stack.outputs["ControlTableName"])["Table"]
    assert keys(control["KeySchema"]) == [("PK", "HASH"), ("SK", "RANGE")], control["KeySchema"]


def the_rule_delivers_to_the_ingest_queue_and_keeps_what_it_cannot_deliver(stack, slack):
    bus, rule = f"ledgerline-{stack.stage}", f"{stack.stage}-save-event-to-dynamo"
    pattern = json.loads(stack.bridge.describe_rule(Name=rule, EventBusName=bus)["EventPattern"])
    assert pattern == {"detail-type": ["log-event"]}, pattern
    (target,) = stack.bridge.list_targets_by_rule(Rule=rule, EventBusName=bus)["Targets"]
    assert target["Id"] == f"{stack.stage}-SaveEventToDynamo", target
    assert target["Arn"].endswith(f":{stack.stage}-ingest"), target
    assert target["DeadLetterConfig"]["Arn"].endswith(f":{stack.stage}-eventbridge-target-dlq"), target
    retries = target["RetryPolicy"]
    assert (int(retries["MaximumRetryAttempts"]), int(retries["MaximumEventAgeInSeconds"])) == (3, 3600), target


def the_queues_give_a_save_time_and_keep_dead_letters_for_14_days(stack, slack):
    ingest = stack.queue(stack.outputs["IngestQueueUrl"])
    redrive = json.loads(ingest["RedrivePolicy"])
    assert redrive["deadLetterTargetArn"].endswith(f":{stack.stage}-eventbridge-target-dlq"), redrive
    assert int(redrive["maxReceiveCount"]) == 5, redrive
    assert int(ingest["VisibilityTimeout"]) >= 6 * 30, ingest
    dead = stack.queue(stack.outputs["DeadLetterQueueUrl"])
    assert int(dead["MessageRetentionPeriod"]) == 14 * 24 * 3600, dead
    assert int(dead["VisibilityTimeout"]) >= 6 * 30, dead


def the_payload_bucket_is_closed_and_its_name_is_published(stack, slack):
    bucket = stack.outputs["PayloadBucketName"]
    published = stack.ssm.get_parameter(Name=f"/ledgerline/{stack.stage}/payload-bucket")["Parameter"]["Value"]
    assert published == bucket, published
    block = stack.s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    assert all(block.values()) and len(block) == 4, block
    policy = json.loads(stack.s3.get_bucket_policy(Bucket=bucket)["Policy"])
    assert any(s["Effect"] == "Deny" and "aws:SecureTransport" in json.dumps(s) for s in policy["Statement"]), policy


def no_role_may_change_or_delete_a_saved_event(stack, slack):
    lists = lambda value: value if isinstance(value, list) else [value]
    seen = 0
    for role in stack.iam.list_roles()["Roles"]:
        for name in stack.iam.list_role_policies(RoleName=role["RoleName"])["PolicyNames"]:
            policy = stack.iam.get_role_policy(RoleName=role["RoleName"], PolicyName=name)["PolicyDocument"]
            for statement in policy["Statement"]:
                if not any(f"table/events-{stack.stage}" in r or r == "*" for r in lists(statement["Resource"])):
                    continue
                seen += 1
                allowed = {"PutItem", "Query", "GetItem", "BatchGetItem"}
                if all("/stream/" in r for r in lists(statement["Resource"])):
                    allowed = {"DescribeStream", "GetRecords", "GetShardIterator", "ListStreams"}
                actions = {action.removeprefix("dynamodb:") for action in lists(statement["Action"])}
                assert actions <= allowed, (role["RoleName"], statement)
    assert seen >= 4, "the saver, the dispatcher and the API have statements on the events table"


def refused(call, **request):
    """Whether the caller may not do that. What it may do fails of the condition that never holds, or succeeds."""
    try:
        call(**request)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        failed = ("ConditionalCheckFailedException", "TransactionCanceledException", "ValidationException")
        assert code == "AccessDeniedException" or code in failed, error
        return code == "AccessDeniedException"
    return False


def with_role(stack, logical_id, check):
    """Calls check with what makes clients that have the credentials of a role of the stack; we are let in for that."""
    name = stack.resources[logical_id]
    role = stack.iam.get_role(RoleName=name)["Role"]
    trust = role["AssumeRolePolicyDocument"]
    us = boto3.client("sts").get_caller_identity()["Arn"]
    visitor = {"Effect": "Allow", "Principal": {"AWS": us}, "Action": "sts:AssumeRole"}
    opened = {**trust, "Statement": [*trust["Statement"], visitor]}
    stack.iam.update_assume_role_policy(RoleName=name, PolicyDocument=json.dumps(opened))
    try:
        given = boto3.client("sts").assume_role(RoleArn=role["Arn"], RoleSessionName="check")["Credentials"]
        check(
            boto3.Session(
                aws_access_key_id=given["AccessKeyId"],
                aws_secret_access_key=given["SecretAccessKey"],
                aws_session_token=given["SessionToken"],
            ).client
        )
    finally:
        stack.iam.update_assume_role_policy(RoleName=name, PolicyDocument=json.dumps(trust))


def writes_refused(stack, dynamodb):
    """What of put, update and delete the caller may not do in the events table. Nothing is changed by asking."""
    table = stack.outputs["EventsTableName"]
    key = {"PK": {"S": "TENANT#nobody"}, "SK": {"S": "nothing"}}
    never = {"TableName": table, "ConditionExpression": "attribute_exists(PK)"}
    put = {"Item": {**key, "note": {"S": "x"}}}
    calls = {
        "put": (dynamodb.put_item, {**never, **put}),
        "put in a transaction": (dynamodb.transact_write_items, {"TransactItems": [{"Put": {**never, **put}}]}),
        "put in a batch": (
            dynamodb.batch_write_item,
            # Without keys of the table: whoever may write is told that this is no item.
            {"RequestItems": {table: [{"PutRequest": {"Item": {"note": {"S": "x"}}}}]}},
        ),
        "update": (
            dynamodb.update_item,
            {
                **never,
                "Key": key,
                "UpdateExpression": "SET note = :x",
                "ExpressionAttributeValues": {":x": {"S": "x"}},
            },
        ),
        "delete": (dynamodb.delete_item, {**never, "Key": key}),
    }
    return {name for name, (call, request) in calls.items() if refused(call, **request)}


def the_dispatcher_and_the_api_may_write_nothing_into_the_events_table(stack, slack):
    all_writes = {"put", "put in a transaction", "put in a batch", "update", "delete"}

    def check(client):
        dynamodb = client("dynamodb")
        assert writes_refused(stack, dynamodb) == all_writes, writes_refused(stack, dynamodb)
        # They are who they are: what they need, they may do.
        table = stack.outputs["EventsTableName"]
        key = {"PK": {"S": "TENANT#nobody"}, "SK": {"S": "nothing"}}
        assert not refused(dynamodb.get_item, TableName=table, Key=key)

    for role in ("DispatcherRole", "ProducerApiRole"):
        with_role(stack, role, check)


def the_saver_may_only_add_to_the_events_table(stack, slack):
    def check(client):
        kept = writes_refused(stack, client("dynamodb")) & {"put", "update", "delete"}
        assert kept == {"update", "delete"}, kept

    with_role(stack, "SaveEventToDynamoRole", check)


def the_dispatcher_may_read_the_stream(stack, slack):
    """Lambda polls it in the role's name. The local AWS polls in nobody's name, and takes every stream for `*` when a
    role asks, so only the policy can be asked what it allows."""
    role = stack.iam.get_role(RoleName=stack.resources["DispatcherRole"])["Role"]["Arn"]
    stream = stack.outputs["EventsTableStreamArn"]
    names = ("DescribeStream", "GetRecords", "GetShardIterator", "ListStreams")

    def allowed(resource):
        answer = stack.iam.simulate_principal_policy(
            PolicySourceArn=role, ActionNames=[f"dynamodb:{name}" for name in names], ResourceArns=[resource]
        )
        decisions = {found["EvalDecision"] for found in answer["EvaluationResults"]}
        assert len(answer["EvaluationResults"]) == len(names), answer
        return decisions == {"allowed"}

    assert allowed(stream)
    assert not allowed(stream.replace(f"table/events-{stack.stage}/", "table/events-another/"))


def the_api_answers_health(stack, slack):
    status, _, body = stack.http("GET", "/api/health")
    assert status == 200, (status, body)
    json.loads(body)


def the_api_refuses_a_caller_without_a_key(stack, slack):
    status, headers, body = stack.http("GET", "/api/events/recent")
    assert status == 401, (status, body)
    assert headers["content-type"].startswith("application/problem+json"), headers["content-type"]


def the_command_line_finds_every_part(stack, slack):
    parts = [json.loads(line) for line in stack.ledgerline("doctor").splitlines()]
    assert len(parts) >= 7 and all(part["state"] == "ok" for part in parts), parts


def the_sample_event_is_saved_whole(stack, slack):
    event = sample_event()
    before = time.time() * 1000
    stack.put(event)
    item = until("the sample event in the events table", lambda: stack.saved(event))
    for name, value in event.items():
        assert item.get(name) == value, (name, item.get(name), value)
    received = int(item["receivedAt"])
    assert before - 1000 <= received <= time.time() * 1000 + 1000, received
    assert len(str(received)) == 13, received


def index_check(name):
    def check(stack, slack):
        partition, beginning = INDEX_QUERIES[name]
        prefix = name.removesuffix("-index")
        condition = Key(f"{prefix}PK").eq(partition)
        if beginning:
            condition &= Key(f"{prefix}SK").begins_with(beginning)
        query = lambda: stack.events.query(IndexName=name, KeyConditionExpression=condition)["Items"]
        items = until(f"the sample event through {name}", query, seconds=5)
        assert [item["SK"] for item in items] == [sample_event()["SK"]], items
        assert items[0]["properties"]["requestId"] == "req-123", items

    check.__name__ = f"the_sample_event_is_found_through_{name}"
    return check


def a_second_delivery_changes_nothing(stack, slack):
    event = sample_event()
    first = stack.saved(event)
    stack.put(event)
    other = sample_event(entity="req-124", timestamp=1767453739641, event_id="3c2f1c39-0a37-44d4-bd20-a51d0a5b9d29")
    stack.put(other)
    until("the event sent after the duplicate", lambda: stack.saved(other))
    until("an empty ingest queue", lambda: stack.idle(stack.outputs["IngestQueueUrl"]))
    assert stack.saved(event) == first, (first, stack.saved(event))


def failed(stack, tenant, words):
    """The failed delivery of the tenant whose attributes hold all the words."""
    for item in stack.failed_deliveries(tenant):
        text = json.dumps(item, default=str)
        if all(word in text for word in words):
            return item
    return None


def check_failed(stack, slack, tenant, event, words):
    item = until(f"a failed delivery of {tenant}", lambda: failed(stack, tenant, words))
    assert item["reason"] and item["body"] and item["state"] == "failed", item
    told = [*words, event["eventType"], item["reason"]]
    until(f"a message in Slack with {told} among {slack.texts}", lambda: slack.heard(*told))
    until("an empty dead-letter queue", lambda: stack.idle(stack.outputs["DeadLetterQueueUrl"]))
    assert stack.saved(event) is None, "the events table has it"


def an_event_with_a_forged_key_is_refused_kept_and_announced(stack, slack):
    event = sample_event(entity="req-forged", event_id="7f0e3a53-5f0f-4c50-8d43-4e6f0c0d6a11")
    event["PK"] = "TENANT#somebody-else"
    stack.put(event)
    check_failed(stack, slack, TENANT, event, ["req-forged"])


def an_event_with_a_bad_timestamp_is_refused_kept_and_announced(stack, slack):
    event = sample_event(entity="req-seconds", timestamp=1767453739, event_id="0d8e9a0e-4b0c-4a43-9dd3-3a4d0f1f8b22")
    stack.put(event)
    check_failed(stack, slack, TENANT, event, ["req-seconds"])


def an_event_that_names_no_tenant_is_shown_to_the_operator(stack, slack):
    stack.put({"note": "nobody-knows-me"})
    item = until("a failed delivery of ops", lambda: failed(stack, "ops", ["nobody-knows-me"]))
    assert item["reason"], item


def the_api_lists_the_failed_deliveries_of_the_callers_tenant(stack, slack):
    status, _, body = stack.http("GET", "/api/failed-deliveries", key=stack.key(TENANT, "read"))
    assert status == 200, (status, body)
    entities = sorted(item["entity"] for item in json.loads(body)["items"])
    assert entities == ["TASK#req-forged", "TASK#req-seconds"], body


def an_event_larger_than_a_row_travels_through_the_api_and_back(stack, slack):
    key = stack.key("acme", "admin")
    properties = {"output": "x" * 600_000, "kept": 1}
    event = {"eventType": "report.made", "entityType": "REPORT", "entityId": "r-1", "properties": properties}
    status, _, body = stack.http("POST", "/api/events/record", body=event, key=key)
    assert status == 202, (status, body[:500])
    event_id = json.loads(body)["eventId"]

    def listed():
        status, _, body = stack.http("GET", "/api/events/recent?entityType=REPORT&entityId=r-1", key=key)
        assert status == 200, (status, body[:500])
        return json.loads(body)["items"]

    (item,) = until("the recorded event in the API", listed)
    assert item["eventId"] == event_id, item["eventId"]
    assert item["properties"] == properties, sorted(item["properties"])
    kept = stack.s3.head_object(
        Bucket=stack.outputs["PayloadBucketName"], Key=f"events/r-1/{event_id}-payload.json"
    )
    assert kept["ContentLength"] > 600_000, kept["ContentLength"]


def nothing_else_reached_the_events_table(stack, slack):
    entities = sorted(item["entityId"] for item in stack.events.scan(ConsistentRead=True)["Items"])
    assert entities == ["r-1", "req-123", "req-124"], entities


# ---- subscriptions: from an event to a task on the queue --------------------------------------------------


def the_dispatcher_is_woken_by_the_stream_and_by_schedule(stack, slack):
    name = f"{stack.stage}-dispatcher"
    (source,) = stack.functions.list_event_source_mappings(FunctionName=name)["EventSourceMappings"]
    table = stack.dynamodb.describe_table(TableName=stack.outputs["EventsTableName"])["Table"]
    assert source["EventSourceArn"] == table["LatestStreamArn"] == stack.outputs["EventsTableStreamArn"], source
    rule = stack.bridge.describe_rule(Name=f"{name}-sweep")
    assert (rule["ScheduleExpression"], rule["State"]) == ("cron(0/2 * * * ? *)", "ENABLED"), rule
    (target,) = stack.bridge.list_targets_by_rule(Rule=f"{name}-sweep")["Targets"]
    assert target["Arn"].endswith(f":function:{name}"), target
    control = stack.dynamodb.describe_table(TableName=stack.outputs["ControlTableName"])["Table"]
    (index,) = control["GlobalSecondaryIndexes"]
    assert index["IndexName"] == "due-index" and index["Projection"]["ProjectionType"] == "KEYS_ONLY", index
    redrive = json.loads(stack.queue(stack.outputs["TaskQueueUrl"])["RedrivePolicy"])
    assert redrive["deadLetterTargetArn"].endswith(f":{stack.stage}-tasks-dlq"), redrive


def workflow_type(stack, tenant, name, **fields):
    return stack.api("POST", "/api/workflows", tenant, {"workflowType": name, "kind": "task", **fields}, 201)


def subscribe(stack, tenant, glob, name, **fields):
    asked = {"eventTypeGlob": glob, "workflowType": name, **fields}
    return stack.api("POST", "/api/subscriptions", tenant, asked, 201)["subscriptionId"]


def an_event_on_the_bus_becomes_a_task_through_a_subscription(stack, slack):
    tenant = "shop"
    workflow_type(stack, tenant, "push_price", timeoutMs=60_000)
    mapper = {"item": "$.entity_id", "price": "$.payload.new_price", "channel": "literal:web"}
    subscription = subscribe(stack, tenant, "price.*", "push_price", inputMapper=mapper)
    # Sweeps lie two minutes apart: of three events that become tasks within one, the stream brought two at least.
    began = time.monotonic()
    for number in range(3):
        event = event_now(tenant, "price.changed", "ITEM", f"item-{number}", {"new_price": number + 0.5})
        stack.put(event)

        def found():
            tasks = stack.tasks_of(tenant, "push_price")
            return next((task for task in tasks if task["input"]["item"] == f"item-{number}"), None)

        task = until(f"the task of item-{number} on the queue", found, PROMPT_SECONDS)
        assert task["input"] == {"item": f"item-{number}", "price": number + 0.5, "channel": "web"}, task
        assert (task["appName"], task["generation"], task["timeoutMs"]) == (APP, 1, 60_000), task
        assert task["context"]["via"] == [subscription], task
        assert task["group"] == tenant, task

        def recorded():
            pending = stack.recent(tenant, "Task Pending")
            return next((found for found in pending if found["entityId"] == task["requestId"]), None)

        pending = until("Task Pending in the ledger", recorded, PROMPT_SECONDS)
        assert pending["causedBy"] == f"event:price.changed:{id_of(event)}", pending
        assert pending["properties"]["requestId"] == task["requestId"], pending
    assert time.monotonic() - began < 110, "so slow that sweeps may have brought them"


def draining_by_hand_moves_the_cursor_and_starts_nothing_twice(stack, slack):
    tenant = "shop"
    newest = max(stack.recent(tenant, "price.changed"), key=lambda event: event["timestamp"])
    # An event counts as settled after five seconds, and only then is the cursor taken past it.
    passed = lambda: stack.drainer(tenant)["cursor"].startswith("TIMESTAMP#") and (
        int(stack.drainer(tenant)["cursor"].split("#")[1]) >= newest["timestamp"]
    )

    def drained():
        answer = stack.api("POST", "/api/events/drain", tenant, {"drainerId": "workflow_runner"})
        assert answer["triggered"] == [], answer
        assert isinstance(answer["processed"], int) and isinstance(answer["skippedDueToLock"], bool), answer
        return passed()

    until("a cursor past the newest event", drained)
    drainer = stack.drainer(tenant)
    assert drainer["drainerId"] == "workflow_runner" and drainer["epoch"] == 0, drainer
    assert drainer["eventsProcessedTotal"] >= 3 and "haltedOnEventId" not in drainer, drainer
    assert len(stack.tasks_of(tenant)) == 3, stack.tasks_of(tenant)
    (line,) = stack.ledgerline("--tenant", tenant, "drainers").splitlines()
    shown = json.loads(line)
    assert (shown["drainerId"], shown["stalled"]) == ("workflow_runner", False), shown


def a_workflow_is_started_by_hand(stack, slack):
    tenant = "shop"
    body = {"input": {"item": "by-hand"}}
    answer = stack.api("POST", "/api/workflows/push_price/start", tenant, body, 202)
    tasks = lambda: [task for task in stack.tasks_of(tenant) if task["requestId"] == answer["started"]]
    (task,) = until("the started task on the queue", tasks)
    assert task["input"] == body["input"], task


def large_inputs_reach_the_worker_whole(stack, slack):
    tenant, bucket = "bulky", stack.outputs["PayloadBucketName"]
    workflow_type(stack, tenant, "read_report")
    subscribe(stack, tenant, "report.made", "read_report")
    # The first fits into a message but not into a claim, the second overflows and travels by reference.
    for entity, size in [("r-claim", 150_000), ("r-reference", 400_000)]:
        properties = {"output": "x" * size, "entity": entity}
        event = {"eventType": "report.made", "entityType": "REPORT", "entityId": entity, "properties": properties}
        stack.api("POST", "/api/events/record", tenant, event, 202)
    (in_message,) = until(
        "the task with its input in the message",
        lambda: [task for task in stack.tasks_of(tenant) if "input" in task],
    )
    assert in_message["input"]["entity"] == "r-claim" and len(in_message["input"]["output"]) == 150_000
    (referred,) = until(
        "the task with its input by reference",
        lambda: [task for task in stack.tasks_of(tenant) if "inputRef" in task],
    )
    assert referred["inputRef"]["bucket"] == bucket, referred
    body = json.loads(stack.s3.get_object(Bucket=bucket, Key=referred["inputRef"]["key"])["Body"].read())
    assert body["entity"] == "r-reference" and len(body["output"]) == 400_000, sorted(body)
    assert stack.s3.list_objects_v2(Bucket=bucket, Prefix="claims/").get("KeyCount"), "no claim was too large"


def more_subscriptions_than_may_start_are_parked_announced_and_can_be_retried(stack, slack):
    tenant = "crowd"
    workflow_type(stack, tenant, "look")
    for _ in range(9):
        subscribe(stack, tenant, "door.opened", "look")
    event = event_now(tenant, "door.opened", "DOOR", "d-1", {"by": "wind"})
    stack.put(event)
    until("eight tasks", lambda: len(stack.tasks_of(tenant)) >= 8, PROMPT_SECONDS)
    notices = lambda: stack.recent(tenant, "workflow.dispatch_capped")
    (capped,) = until("workflow.dispatch_capped in the ledger", notices)
    assert capped["properties"]["matched"] == 9, capped
    until("a message in Slack", lambda: slack.heard("Too many subscriptions", "door.opened", f"--stage {stack.stage}"))
    (parked,) = stack.api("GET", "/api/parked", tenant)["items"]
    assert (parked["because"], parked["eventId"]) == ("fanout-cap", id_of(event)), parked
    (line,) = stack.ledgerline("--tenant", tenant, "parked", "list").splitlines()
    assert json.loads(line)["id"] == parked["id"], line
    assert len(stack.tasks_of(tenant)) == 8, stack.tasks_of(tenant)
    retried = stack.api("POST", f"/api/parked/{parked['id']}/retry", tenant)
    assert retried["started"] and not retried["alreadyStarted"], retried
    until("the ninth task", lambda: len(stack.tasks_of(tenant)) == 9)
    assert stack.api("GET", "/api/parked", tenant)["items"] == []
    assert stack.ledgerline("--tenant", tenant, "parked", "list") == ""


def a_start_that_fails_halts_its_tenant_and_the_sweep_comes_back_to_it(stack, slack):
    tenant = "stuck"
    subscribe(stack, tenant, "price.*", "not_there_yet", onFailure="halt")
    event = event_now(tenant, "price.changed", "ITEM", "item-1", {"new_price": 1})
    stack.put(event)
    failures = lambda: stack.recent(tenant, "workflow.dispatch_failed")
    (failure,) = until("workflow.dispatch_failed in the ledger", failures, PROMPT_SECONDS)
    assert failure["causedBy"] == f"event:price.changed:{id_of(event)}", failure
    assert "not_there_yet" in failure["properties"]["reason"], failure
    drainer = stack.drainer(tenant)
    assert drainer["haltedOnEventId"] == id_of(event), drainer
    assert "`not_there_yet` is not registered" in drainer["lastError"], drainer
    (line,) = stack.ledgerline("--tenant", tenant, "parked", "list", "--all").splitlines()
    assert json.loads(line)["state"] == "retrying", line
    # Nothing of this tenant happens any more, so no stream wakes the drainer: the schedule does.
    workflow_type(stack, tenant, "not_there_yet")
    until("the task after a sweep", lambda: stack.tasks_of(tenant), SWEEP_SECONDS)
    until("a drainer that goes on", lambda: "haltedOnEventId" not in stack.drainer(tenant), SWEEP_SECONDS)
    assert len(stack.tasks_of(tenant)) == 1 and len(failures()) == 1, (stack.tasks_of(tenant), failures())
    swept = stack.control.get_item(Key={"PK": "SCHEDULE", "SK": "workflow_runner"}, ConsistentRead=True)
    assert swept.get("Item", {}).get("visitedAt"), "no sweep has visited everybody"


CHECKS = [
    the_tables_have_the_keys_indexes_and_stream_of_the_format,
    the_rule_delivers_to_the_ingest_queue_and_keeps_what_it_cannot_deliver,
    the_queues_give_a_save_time_and_keep_dead_letters_for_14_days,
    the_payload_bucket_is_closed_and_its_name_is_published,
    no_role_may_change_or_delete_a_saved_event,
    the_dispatcher_and_the_api_may_write_nothing_into_the_events_table,
    the_saver_may_only_add_to_the_events_table,
    the_dispatcher_may_read_the_stream,
    the_api_answers_health,
    the_api_refuses_a_caller_without_a_key,
    the_command_line_finds_every_part,
    the_sample_event_is_saved_whole,
    *[index_check(name) for name in INDEX_QUERIES],
    a_second_delivery_changes_nothing,
    an_event_with_a_forged_key_is_refused_kept_and_announced,
    an_event_with_a_bad_timestamp_is_refused_kept_and_announced,
    an_event_that_names_no_tenant_is_shown_to_the_operator,
    the_api_lists_the_failed_deliveries_of_the_callers_tenant,
    an_event_larger_than_a_row_travels_through_the_api_and_back,
    nothing_else_reached_the_events_table,
    the_dispatcher_is_woken_by_the_stream_and_by_schedule,
    an_event_on_the_bus_becomes_a_task_through_a_subscription,
    draining_by_hand_moves_the_cursor_and_starts_nothing_twice,
    a_workflow_is_started_by_hand,
    large_inputs_reach_the_worker_whole,
    more_subscriptions_than_may_start_are_parked_announced_and_can_be_retried,
    a_start_that_fails_halts_its_tenant_and_the_sweep_comes_back_to_it,
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", help="the deployed stage to check")
    parser.add_argument("--cli", help="the ledgerline binary")
    parser.add_argument("--healthy", action="store_true", help="only ask whether the local AWS is up")
    arguments = parser.parse_args()
    if arguments.healthy:
        sys.exit(0 if fetch("/_ministack/health")[0] == 200 else 1)
    stack = Stack(arguments.stage, arguments.cli)
    slack = Slack()
    stack.ssm.put_parameter(
        Name=stack.outputs["SlackWebhookParameter"], Type="SecureString", Value=slack.url, Overwrite=True
    )
    let_senders_send_batches(stack)
    passed, failures = 0, 0
    for check in CHECKS:
        name = check.__name__.replace("_", " ")
        started = time.monotonic()
        try:
            check(stack, slack)
        except Exception:
            failures += 1
            print(f"FAIL  {name} ({time.monotonic() - started:.1f} s)", flush=True)
            traceback.print_exc(file=sys.stdout)
        else:
            passed += 1
            print(f"ok    {name} ({time.monotonic() - started:.1f} s)", flush=True)
    print(f"{passed} passed, {failures} failed", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
