"""Subscriptions: from an event to a task on the queue."""

import json
import time

from stack import APP, PROMPT_SECONDS, SWEEP_SECONDS, event_now, id_of, until

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
    projected = {i["IndexName"]: i["Projection"]["ProjectionType"] for i in control["GlobalSecondaryIndexes"]}
    assert projected == {"due-index": "KEYS_ONLY", "list-index": "ALL"}, projected
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
    shown = [json.loads(line) for line in stack.ledgerline("--tenant", tenant, "drainers").splitlines()]
    assert {drainer["drainerId"]: drainer["stalled"] for drainer in shown} == {
        "jobs": False,
        "workflow_runner": False,
    }, shown


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
    # A sweep sends the alert, once that is a minute old.
    heard = lambda: slack.heard("Too many subscriptions", "door.opened", f"--stage {stack.stage}")
    until("a message in Slack", heard, SWEEP_SECONDS + 60)


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


def a_filter_that_cannot_be_evaluated_is_that_events_failure(stack, slack):
    """No CEL expression is known that panics; one that gives up takes the same way, and a panic is tested in Rust."""
    tenant = "divider"
    workflow_type(stack, tenant, "share")
    subscribe(stack, tenant, "cake.cut", "share", filterExpr="event.properties.pieces / event.properties.guests > 1")
    failing = event_now(tenant, "cake.cut", "CAKE", "c-1", {"pieces": 8, "guests": 0})
    sound = event_now(tenant, "cake.cut", "CAKE", "c-2", {"pieces": 8, "guests": 2})
    stack.put(failing)
    stack.put(sound)
    until("the task of the other event", lambda: stack.tasks_of(tenant), PROMPT_SECONDS)
    (parked,) = until("the parked start", lambda: stack.api("GET", "/api/parked", tenant)["items"])
    assert parked["eventId"] == id_of(failing) and "filterExpr" in parked["reason"], parked
    assert len(stack.tasks_of(tenant)) == 1, stack.tasks_of(tenant)


CHECKS = [
    the_dispatcher_is_woken_by_the_stream_and_by_schedule,
    an_event_on_the_bus_becomes_a_task_through_a_subscription,
    draining_by_hand_moves_the_cursor_and_starts_nothing_twice,
    a_workflow_is_started_by_hand,
    large_inputs_reach_the_worker_whole,
    more_subscriptions_than_may_start_are_parked_announced_and_can_be_retried,
    a_start_that_fails_halts_its_tenant_and_the_sweep_comes_back_to_it,
    a_filter_that_cannot_be_evaluated_is_that_events_failure,
]
