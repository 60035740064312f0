use serde_json::json;

use super::*;

/// For each event type: properties with every field, and the fields that may be left out.
fn examples() -> Vec<(&'static str, Value, &'static [&'static str])> {
    let task = |rest: Value| merge(json!({"requestId": "job-456:task-C", "jobId": "job-456"}), rest);
    vec![
        (
            "Task Pending",
            task(json!({"name": "scrape-store", "dependsOn": ["task-A"]})),
            &["jobId", "dependsOn"],
        ),
        (
            "Task Processing Started",
            task(json!({"effectiveUntil": 1_707_300_645, "workerId": "worker-i-001", "processId": 12345})),
            &["jobId"],
        ),
        (
            "Task Processing Failed",
            task(json!({"attemptNumber": 2, "error": "ETIMEDOUT", "errorCategory": "network"})),
            &["jobId"],
        ),
        (
            "Task Completed",
            task(json!({
                "output": {"pages": 3}, "durationMs": 45_000, "exitCode": 0,
                "usage": {"inputTokens": 12_000, "outputTokens": 3_500, "cacheReadTokens": 8_000}
            })),
            &["jobId", "usage"],
        ),
        (
            "Task Failed",
            task(
                json!({"error": "Invalid API key", "errorCategory": "auth", "retryCount": 3, "source": "worker"}),
            ),
            &["jobId"],
        ),
        (
            "Task Timeout",
            task(json!({"timeoutMs": 200_000, "elapsedMs": 200_050, "signal": "SIGKILL"})),
            &["jobId"],
        ),
        (
            "Task Heartbeat",
            json!({
                "requestId": "req-123", "effectiveUntil": 1_707_300_645, "heartbeatNumber": 3, "elapsedMs": 60_000,
                "workerId": "worker-i-001", "processId": 12345, "memoryUsage": {"rss": 256_000_000},
                "lastActivity": {"type": "step_running", "stepName": "color-tags", "timestamp": 1_707_300_540}
            }),
            &["lastActivity"],
        ),
        (
            "Job Created",
            json!({
                "jobId": "job-456", "requestId": "req-789", "totalTasks": 1,
                "tasks": [{"taskId": "task-A", "name": "scrape-store", "dependsOn": [], "input": {"storeId": "s"}}]
            }),
            &[],
        ),
        (
            "Job Tasks Added",
            json!({
                "jobId": "job-456", "previousTotalTasks": 5, "totalTasksNow": 6,
                "newTasks": [{
                    "taskId": "task-F", "name": "market", "dependsOn": ["task-A"], "input": {},
                    "timeoutMs": 60_000, "maxAttempts": 5
                }]
            }),
            &[],
        ),
        (
            "Job Completed",
            json!({"jobId": "job-456", "totalTasks": 1, "taskStatuses": {"task-A": "completed"}}),
            &[],
        ),
        (
            "Job Failure Detected",
            json!({
                "jobId": "job-456", "failedTaskId": "task-C",
                "taskStatuses": {"task-A": "completed", "task-C": "failed", "task-D": "processing", "task-E": null}
            }),
            &[],
        ),
        (
            "Job Resumed",
            json!({"jobId": "job-456", "generation": 2, "tasks": {"task-C": 2, "task-D": 3}}),
            &[],
        ),
        (
            "Task Health Check",
            json!({
                "summary": {"totalProcessing": 4, "healthy": 2, "warning": 1, "critical": 0, "overtime": 1},
                "tasks": [{
                    "requestId": "req-123", "health": "healthy", "elapsed": 120_000, "timeSinceLastEvent": 15_000,
                    "lastEventType": "Task Heartbeat", "workerId": "worker-i-001"
                }]
            }),
            &[],
        ),
    ]
}

fn merge(mut left: Value, right: Value) -> Value {
    let (Value::Object(fields), Value::Object(more)) = (&mut left, right) else { panic!("objects") };
    fields.extend(more);
    left
}

fn written(known: &Known) -> Value {
    macro_rules! each {
        ($($name:ident)*) => { match known { $(Known::$name(properties) => serde_json::to_value(properties),)* } };
    }
    each!(TaskPending TaskProcessingStarted TaskProcessingFailed TaskCompleted TaskFailed TaskTimeout TaskHeartbeat
        JobCreated JobTasksAdded JobCompleted JobFailureDetected JobResumed TaskHealthCheck)
    .unwrap()
}

#[test]
fn every_type_keeps_its_exact_fields() {
    let types: Vec<_> = examples().iter().map(|(event_type, _, _)| *event_type).collect();
    assert_eq!(types, EVENT_TYPES);
    for (event_type, properties, _) in examples() {
        let known = Known::read(event_type, properties.as_object().unwrap()).unwrap().unwrap();
        assert_eq!(known.event_type(), event_type);
        assert_eq!(written(&known), properties, "{event_type}");
    }
}

#[test]
fn exactly_the_optional_fields_may_be_left_out() {
    for (event_type, properties, optional) in examples() {
        for field in properties.as_object().unwrap().keys() {
            let mut less = properties.as_object().unwrap().clone();
            less.remove(field);
            let read = Known::read(event_type, &less).unwrap();
            // An output that was moved to S3 is not there until it is restored.
            let may_be_absent = optional.contains(&field.as_str())
                || (event_type, field.as_str()) == ("Task Completed", "output");
            assert_eq!(read.is_ok(), may_be_absent, "{event_type}.{field}: {read:?}");
            if optional.contains(&field.as_str()) {
                assert_eq!(written(&read.unwrap()), Value::Object(less), "left out stays out");
            }
        }
    }
}

#[test]
fn an_unknown_type_is_plain_json() {
    assert!(Known::read("price.changed", &Properties::new()).is_none());
}

#[test]
fn retryable_categories_are_four_of_seven() {
    let of = |text: &str| serde_json::from_value::<ErrorCategory>(json!(text)).unwrap().is_retryable();
    assert!(["timeout", "network", "rate-limit", "server-error"].into_iter().all(of));
    assert!(!["auth", "validation", "programming"].into_iter().any(of));
}
