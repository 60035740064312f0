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
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
from boto3.dynamodb.conditions import Key

WAIT_SECONDS = 60

TENANT = "gbinnovations"
APP = "task-workflow"


def sample_event(entity="req-123", timestamp=1767453739640, event_id="ddf71f63-b036-4ac7-ad0f-77a7fdfca352"):
    """The event that the format's description shows, with all its keys; of another entity, time or id if asked."""
    kind = "Task Processing Started"
    task, app, tenant = f"TASK#{entity}", f"APP#{APP}", f"TENANT#{TENANT}"
    at = f"TIMESTAMP#{timestamp}"
    return {
        "PK": tenant,
        "SK": f"{at}#EVENT#{event_id}",
        "GSI1PK": task,
        "GSI1SK": f"TASK#{at}",
        "GSI2PK": app,
        "GSI2SK": at,
        "GSI3PK": app,
        "GSI3SK": f"{task}#{at}",
        "GSI4PK": f"EVENT#{kind}",
        "GSI4SK": f"{tenant}#{at}",
        "GSI5PK": f"EVENT#{kind}",
        "GSI5SK": f"{tenant}#{task}#{at}",
        "GSI6PK": f"EVENT#{kind}",
        "GSI6SK": f"{tenant}#{app}#{at}",
        "GSI7PK": f"EVENT#{kind}",
        "GSI7SK": f"{tenant}#{app}#{task}#{at}",
        "entityId": entity,
        "entityType": "TASK",
        "tenantId": TENANT,
        "eventType": kind,
        "timestamp": timestamp,
        "context": {
            "source": "system",
            "environment": "prod",
            "origin": "sqs-worker",
            "workerId": "worker-abc123",
        },
        "properties": {"requestId": entity, "startedAt": timestamp},
    }


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
        return json.loads(self.ledgerline("--tenant", tenant, "keys", "create", "--scope", scope))["key"]

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
                actions = {action.removeprefix("dynamodb:") for action in lists(statement["Action"])}
                assert actions <= allowed, (role["RoleName"], statement)
    assert seen >= 2, "no role touches the events table at all"


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


CHECKS = [
    the_tables_have_the_keys_indexes_and_stream_of_the_format,
    the_rule_delivers_to_the_ingest_queue_and_keeps_what_it_cannot_deliver,
    the_queues_give_a_save_time_and_keep_dead_letters_for_14_days,
    the_payload_bucket_is_closed_and_its_name_is_published,
    no_role_may_change_or_delete_a_saved_event,
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
