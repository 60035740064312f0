"""Sends events through a deployed stack and looks at what became of them.

tests/aws/run deploys the stack and calls this with AWS_ENDPOINT_URL set. One line per check; the last line is
"N passed, N failed". What takes time is waited for until a deadline.
"""

import argparse
import json
import sys
import time
import traceback

import boto3
from boto3.dynamodb.conditions import Key
from botocore.exceptions import ClientError

import foreign
import runs
import subscriptions
import tasks
from stack import Slack, Stack, event_of, fetch, let_senders_send_batches, policies_of, until

TENANT = "gbinnovations"


def sample_event(entity="req-123", timestamp=1767453739640, event_id="ddf71f63-b036-4ac7-ad0f-77a7fdfca352"):
    """The event that the format's description shows; of another entity, time or id if asked."""
    context = {"source": "system", "environment": "prod", "origin": "sqs-worker", "workerId": "worker-abc123"}
    properties = {"requestId": entity, "startedAt": timestamp}
    return event_of(
        TENANT, "Task Processing Started", "TASK", entity, timestamp, event_id, properties, context
    )


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
        for _, policy in policies_of(stack, role["RoleName"]):
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
            # Without keys of the table: a role that may write is told that this is no item.
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


def the_runner_may_neither_write_nor_read_the_events_table(stack, slack):
    """An author of workflows runs code under this role."""

    def check(client):
        dynamodb = client("dynamodb")
        assert "delete" in writes_refused(stack, dynamodb) and len(writes_refused(stack, dynamodb)) == 5
        key = {"PK": {"S": "TENANT#nobody"}, "SK": {"S": "nothing"}}
        assert refused(dynamodb.get_item, TableName=stack.outputs["EventsTableName"], Key=key)
        run = {"PK": {"S": "RUN#nobody#none"}, "SK": {"S": "RUN"}}
        assert not refused(dynamodb.get_item, TableName=stack.outputs["ControlTableName"], Key=run)

    with_role(stack, "RunnerRole", check)


def the_saver_may_only_add_to_the_events_table(stack, slack):
    def check(client):
        kept = writes_refused(stack, client("dynamodb")) & {"put", "update", "delete"}
        assert kept == {"update", "delete"}, kept

    with_role(stack, "SaveEventToDynamoRole", check)


def the_dispatcher_may_read_the_stream(stack, slack):
    """Lambda polls it in the role's name. The local AWS polls without a role, and takes every stream for `*` when a
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
    items = stack.events.scan(ConsistentRead=True)["Items"]
    # The sample event says that its task runs, so the task is looked at each minute.
    entities = sorted(item["entityId"] for item in items if item["entityType"] != "HEALTH")
    assert entities == ["r-1", "req-123", "req-124"], entities


CHECKS = [
    the_tables_have_the_keys_indexes_and_stream_of_the_format,
    the_rule_delivers_to_the_ingest_queue_and_keeps_what_it_cannot_deliver,
    the_queues_give_a_save_time_and_keep_dead_letters_for_14_days,
    the_payload_bucket_is_closed_and_its_name_is_published,
    no_role_may_change_or_delete_a_saved_event,
    the_dispatcher_and_the_api_may_write_nothing_into_the_events_table,
    the_runner_may_neither_write_nor_read_the_events_table,
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
    *subscriptions.CHECKS,
    *tasks.CHECKS,
    *foreign.CHECKS,
    *runs.CHECKS,
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", help="the deployed stage to check")
    parser.add_argument("--cli", help="the ledgerline binary")
    parser.add_argument("--program", help="the example program with workflows")
    parser.add_argument("--healthy", action="store_true", help="only ask whether the local AWS is up")
    arguments = parser.parse_args()
    if arguments.healthy:
        sys.exit(0 if fetch("/_ministack/health")[0] == 200 else 1)
    stack = Stack(arguments.stage, arguments.cli, arguments.program)
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
