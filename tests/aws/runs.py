"""Runs of durable workflows: the example program deployed as the function `runner`, and as a process beside it."""

import json
import os
import secrets
import subprocess
import time

import boto3

from stack import PROMPT_SECONDS, event_now, let_role_send_batches, until
from subscriptions import subscribe, workflow_type

# What a queue's delay or the schedule brings: a minute, and as much again for a slow machine.
TIMER_SECONDS = 120

ORDER = {"lines": [{"sku": "tea", "quantity": 2, "cents": 450}]}


def begin(stack, tenant, workflow, given):
    return stack.api("POST", "/api/runs", tenant, {"workflow": workflow, "input": given}, 202)["runId"]


def run_of(stack, tenant, run_id):
    return stack.api("GET", f"/api/runs/{run_id}", tenant)


def waiting(stack, tenant, run_id):
    """The run, once it waits for something."""

    def probe():
        run = run_of(stack, tenant, run_id)
        return any(wait["state"] == "waiting" for wait in run["waits"]) and run

    return until(f"a wait of {run_id}", probe, PROMPT_SECONDS)


def ended(stack, tenant, run_id, seconds=PROMPT_SECONDS):
    def probe():
        run = run_of(stack, tenant, run_id)
        return run["state"] not in ("pending", "running") and run

    return until(f"the end of {run_id}: {run_of(stack, tenant, run_id)}", probe, seconds)


def check_told(stack, tenant, run_id):
    """The ledger has every event of the log, once, through the same pipeline as all others."""
    log = stack.api("GET", f"/api/runs/{run_id}/events?limit=100", tenant)["items"]
    kinds = {event["eventType"] for event in log}

    def told():
        events = [event for kind in kinds for event in stack.recent(tenant, kind)]
        return [event for event in events if event.get("workflowRunId") == run_id]

    until(f"the events of {run_id} in the ledger", lambda: len(told()) >= len(log))
    assert sorted(e["eventId"] for e in told()) == sorted(e["eventId"] for e in log), (told(), log)
    assert all(event["entityType"] in ("RUN", "STEP", "HOOK", "WAIT") for event in told()), told()


def pay(stack, tenant, order, cents):
    paid = {"event": "payment.received", "data": {"cents": cents}, "match": {"orderId": order, "currency": "EUR"}}
    return stack.api("POST", "/api/events/send", tenant, paid, 202)["eventId"]


def the_runner_is_called_by_the_run_queue_and_by_schedule(stack, slack):
    name = f"{stack.stage}-runner"
    (source,) = stack.functions.list_event_source_mappings(FunctionName=name)["EventSourceMappings"]
    assert source["EventSourceArn"].endswith(f":{stack.stage}-runs"), source
    assert (source["BatchSize"], source["FunctionResponseTypes"]) == (1, ["ReportBatchItemFailures"]), source
    assert int(source["ScalingConfig"]["MaximumConcurrency"]) == 20, source
    rule = stack.bridge.describe_rule(Name=f"{name}-sweep")
    assert (rule["ScheduleExpression"], rule["State"]) == ("cron(0/1 * * * ? *)", "ENABLED"), rule
    queue = stack.queue(stack.outputs["RunQueueUrl"])
    timeout = stack.functions.get_function_configuration(FunctionName=name)["Timeout"]
    assert int(queue["VisibilityTimeout"]) > timeout == 900, (queue, timeout)
    redrive = json.loads(queue["RedrivePolicy"])
    assert redrive["deadLetterTargetArn"].endswith(f":{stack.stage}-eventbridge-target-dlq"), redrive


def an_order_waits_for_its_payment_and_is_shipped(stack, slack):
    tenant = "teashop"
    run_id = begin(stack, tenant, "order", {"orderId": "o-1", **ORDER})
    run = waiting(stack, tenant, run_id)
    assert (run["state"], run["workflowVersion"]) == ("running", "1"), run
    pay(stack, tenant, "o-2", 900)
    pay(stack, tenant, "o-1", 900)
    # The other payment was sent before any run waited for it.
    early = begin(stack, tenant, "order", {"orderId": "o-2", **ORDER})
    for one in (run_id, early):
        run = ended(stack, tenant, one)
        assert run["state"] == "completed", run
        assert (run["output"]["state"], run["output"]["chargedCents"]) == ("shipped", 900), run
        assert [step["stepName"] for step in run["steps"]] == ["reserve", "charge", "ship"], run
        check_told(stack, tenant, one)
    sent = stack.api("GET", "/api/events/sent?event=payment.received", tenant)["items"]
    assert [event["consumedCount"] for event in sent] == [1, 1], sent


def an_approval_takes_an_answer_from_whoever_has_the_token(stack, slack):
    tenant = "office"
    run_id = begin(stack, tenant, "approval", {"document": "budget.pdf", "approver": "ada"})
    token = waiting(stack, tenant, run_id)["hooks"][0]["token"]
    answer = {"approved": True, "by": "ada"}
    status, _, body = stack.http("POST", f"/api/hooks/{token}", body=answer)
    assert status == 202, (status, body)
    run = ended(stack, tenant, run_id)
    assert run["output"] == {"state": "approved", "by": "ada"}, run
    assert stack.http("POST", f"/api/hooks/{token}", body=answer)[0] == 410
    check_told(stack, tenant, run_id)


def sleeps_of_two_seconds_end_and_nobody_waits_for_them(stack, slack):
    tenant = "office"
    given = {"document": "budget.pdf", "approver": "ada", "remindAfterSeconds": 2, "expireAfterSeconds": 4}
    run = ended(stack, tenant, begin(stack, tenant, "approval", given), TIMER_SECONDS)
    assert run["output"] == {"state": "expired"}, run
    for wait in run["waits"]:
        late = wait["completedAt"] - wait["resumeAt"]
        # Within a second by the queue's delay; a loaded machine starts functions more slowly.
        assert wait["outcome"] == "elapsed" and 0 <= late < 10_000, (late, wait)
    assert [step["stepName"] for step in run["steps"]] == ["tell the approver", "remind the approver"], run


def a_run_that_fails_undoes_what_it_did_and_bad_input_is_named(stack, slack):
    tenant = "travel"
    run = ended(stack, tenant, begin(stack, tenant, "saga", {"traveller": "ada", "to": "Venice"}))
    assert (run["state"], run["errorCode"]) == ("failed", "not_available"), run
    assert [step["stepName"] for step in run["steps"]][3:] == ["cancel hotel", "cancel flight"], run
    run = ended(stack, tenant, begin(stack, tenant, "saga", {"traveller": "ada"}))
    assert (run["state"], run["errorCode"]) == ("failed", "bad_input") and "`to`" in run["error"], run
    status, _, body = stack.http("POST", "/api/runs", body={"workflow": "sage"}, key=stack.key(tenant, "admin"))
    assert status == 400 and "saga" in json.loads(body)["detail"], (status, body)


def a_large_input_and_a_wide_fan_out_come_through(stack, slack):
    tenant = "library"
    documents = [f"{number} {'word ' * 10_000}" for number in range(20)]
    run = ended(stack, tenant, begin(stack, tenant, "fan_out", {"documents": documents}), TIMER_SECONDS)
    assert run["state"] == "completed" and run["output"]["words"]["word"] == 200_000, run["state"]
    assert len(run["steps"]) == 20 and run["input"] == {"documents": documents}
    check_told(stack, tenant, run["runId"])


def subscriptions_start_runs_and_send_them_events(stack, slack):
    tenant = "webshop"
    workflow_type(stack, tenant, "fulfil", kind="run", workflow="order")
    order = {"orderId": "$.entity_id", "lines": "$.payload.lines"}
    subscribe(stack, tenant, "order.placed", "fulfil", inputMapper=order)
    match = {"orderId": "$.orderId"}
    workflow_type(stack, tenant, "tell_payment", kind="send", event="payment.received", match=match)
    paid = {"orderId": "$.entity_id", "cents": "$.payload.cents"}
    subscribe(stack, tenant, "invoice.paid", "tell_payment", inputMapper=paid)

    stack.put(event_now(tenant, "order.placed", "ORDER", "o-9", ORDER))
    runs = lambda: stack.api("GET", "/api/runs", tenant)["items"]
    (run,) = until("a run of the subscription", runs, PROMPT_SECONDS)
    assert run["workflowName"] == "order", run
    waiting(stack, tenant, run["runId"])
    stack.put(event_now(tenant, "invoice.paid", "ORDER", "o-9", {"cents": 900}))
    done = ended(stack, tenant, run["runId"])
    assert done["state"] == "completed" and done["output"]["chargedCents"] == 900, done
    created = until("run_created in the ledger", lambda: stack.recent(tenant, "run_created"))
    assert len(created) == 1 and created[0]["causedBy"].startswith("event:order.placed:"), created


def new_ulid():
    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    number = int(time.time() * 1000) << 80 | secrets.randbits(80)
    return "".join(digits[number >> shift & 31] for shift in range(125, -1, -5))


def a_run_is_driven_by_nothing_but_http(stack, slack):
    tenant, run_id = "elsewhere", f"wrun_{new_ulid()}"
    step, hook_id, waits = f"step_{new_ulid()}", f"hook_{new_ulid()}", [f"wait_{new_ulid()}" for _ in range(2)]
    path, key = f"/api/runs/{run_id}/events", stack.key(tenant, "admin")

    def append(kind, data, about=None, expect=201):
        body = {"eventType": kind, "eventData": data, **({"correlationId": about} if about else {})}
        status, _, answer = stack.http("POST", path, body=body, key=key)
        assert status == expect, (kind, status, answer)
        return json.loads(answer)

    append("run_created", {"workflowName": "theirs", "input": [1]})
    append("run_completed", {"output": 1}, expect=409)
    append("run_started", {})
    append("step_created", {"stepName": "work"}, step)
    append("step_started", {"attempt": 1}, step)
    append("step_completed", {"result": 2}, step)
    hook = append("hook_created", {}, hook_id)["hook"]
    status, _, answer = stack.http("POST", f"/api/hooks/{hook['token']}", body={"yes": True})
    assert status == 202, (status, answer)
    append("wait_created", {"eventName": "parcel.arrived", "matchCriteria": {"parcel": 7}}, waits[0])
    sent = {"event": "parcel.arrived", "match": {"parcel": 7, "where": "door"}}
    stack.api("POST", "/api/events/send", tenant, sent, 202)
    over = lambda: [wait for wait in run_of(stack, tenant, run_id)["waits"] if wait["state"] == "completed"]
    assert until("the wait over", over)[0]["outcome"] == "event"
    # No runner here executes it, so the schedule sees to its sleep.
    append("wait_created", {"resumeAt": int(time.time() * 1000) + 500}, waits[1])
    until("the sleep over", lambda: len(over()) == 2, TIMER_SECONDS)
    append("run_completed", {"output": {"steps": 1}})
    run = run_of(stack, tenant, run_id)
    assert (run["state"], run["external"], run["hooks"][0]["state"]) == ("completed", True, "disposed"), run
    check_told(stack, tenant, run_id)


def what_is_no_run_goes_back_and_holds_nobody_up(stack, slack):
    tenant, url = "teashop", stack.outputs["RunQueueUrl"]
    stack.sqs.send_message(QueueUrl=url, MessageBody="no run")
    run = ended(stack, tenant, begin(stack, tenant, "fan_out", {"documents": ["a"]}))
    assert run["output"]["words"] == {"a": 1}, run
    hidden = lambda: int(stack.queue(url)["ApproximateNumberOfMessagesNotVisible"]) == 1
    until("only what is no run on the queue", hidden)


def the_program_as_a_process_needs_no_more_than_its_policy(stack, slack):
    tenant, name = "machine-room", f"{stack.stage}-runner"
    function = f"{stack.stage}-runner"
    (source,) = stack.functions.list_event_source_mappings(FunctionName=function)["EventSourceMappings"]
    us = boto3.client("sts").get_caller_identity()["Arn"]
    trust = {"Effect": "Allow", "Principal": {"AWS": us}, "Action": "sts:AssumeRole"}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    role = stack.iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    stack.iam.attach_role_policy(RoleName=name, PolicyArn=stack.outputs["RunnerPolicyArn"])
    let_role_send_batches(stack, name)
    given = boto3.client("sts").assume_role(RoleArn=role, RoleSessionName="runner")["Credentials"]
    environment = {
        **os.environ,
        "SSL_CERT_FILE": os.environ["AWS_CA_BUNDLE"],
        "AWS_ACCESS_KEY_ID": given["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": given["SecretAccessKey"],
        "AWS_SESSION_TOKEN": given["SessionToken"],
    }
    # Only one of the two is to have these runs.
    stack.functions.update_event_source_mapping(UUID=source["UUID"], Enabled=False)
    command = [stack.program, "--stage", stack.stage]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as program:
        try:
            run_id = begin(stack, tenant, "order", {"orderId": "o-1", **ORDER})
            waiting(stack, tenant, run_id)
            pay(stack, tenant, "o-1", 900)
            run = ended(stack, tenant, run_id)
        finally:
            program.terminate()
            said = program.stderr.read()
            stack.functions.update_event_source_mapping(UUID=source["UUID"], Enabled=True)
    assert run["state"] == "completed", (run, said)
    assert f"4 workflows: approval, fan_out, order, saga; waiting for runs of stage {stack.stage} on AWS" in said, said
    assert program.returncode == 0, (program.returncode, said)
    check_told(stack, tenant, run_id)


def a_step_that_panics_is_retried_and_then_fails_its_run(stack, slack):
    """Functions unwind: without that the whole process would die of it, again and again, and no attempt would count."""
    tenant = "travel"
    run_id = begin(stack, tenant, "saga", {"traveller": "ada", "to": "Atlantis"})
    run = ended(stack, tenant, run_id, TIMER_SECONDS)
    assert run["state"] == "failed", run
    (step,) = run["steps"]
    assert (step["stepName"], step["state"]) == ("book flight", "failed"), run
    log = stack.api("GET", f"/api/runs/{run_id}/events?limit=100", tenant)["items"]
    kinds = [event["eventType"] for event in log if event["correlationId"] == step["stepId"]]
    assert kinds.count("step_started") == 3 and kinds.count("step_retrying") == 2, log
    assert "panicked" in json.dumps(log) and "nothing is booked under water" in json.dumps(log), log
    # The process lives on.
    after = ended(stack, tenant, begin(stack, tenant, "saga", {"traveller": "ada", "to": "Turin"}))
    assert after["state"] == "completed", after


CHECKS = [
    the_runner_is_called_by_the_run_queue_and_by_schedule,
    an_order_waits_for_its_payment_and_is_shipped,
    an_approval_takes_an_answer_from_whoever_has_the_token,
    sleeps_of_two_seconds_end_and_nobody_waits_for_them,
    a_run_that_fails_undoes_what_it_did_and_bad_input_is_named,
    a_step_that_panics_is_retried_and_then_fails_its_run,
    a_large_input_and_a_wide_fan_out_come_through,
    subscriptions_start_runs_and_send_them_events,
    a_run_is_driven_by_nothing_but_http,
    what_is_no_run_goes_back_and_holds_nobody_up,
    the_program_as_a_process_needs_no_more_than_its_policy,
]
