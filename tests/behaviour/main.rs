//! End-to-end behaviour, one file each, over the embedded services through real SDK clients.

#![allow(clippy::unwrap_used)]

mod binary;

/// From a sender to a row, and back by a query.
mod events {
    mod duplicates;
    mod emitting;
    mod failed_deliveries;
    mod floods;
    mod interrupted_deliveries;
    mod overflow;
    mod queries;
    mod sample_event;
    mod watermark_handshake;
}

/// From a row to what subscribes to it: drainers, starts, sweeps.
mod drains {
    mod blocked_starts;
    mod dispatching;
    mod draining;
    mod fan_out_and_loops;
    mod marks;
    mod permanent_failures;
    mod rare_conflicts;
    mod rewinding;
    mod subscriptions_api;
    mod subscriptions_bad_input;
    mod subscriptions_cli;
    mod sweeps;
}

/// Tasks, their workers, and jobs of several tasks.
mod tasks_and_jobs {
    mod dead_letters;
    mod examples;
    mod external_ends;
    mod job_end_notifications;
    mod jobs;
    mod jobs_api;
    mod killed_workers;
    mod oversized_jobs;
    mod python_worker;
    mod task_health;
    mod tasks;
    mod tasks_api;
    mod tasks_cli;
    mod tasks_without_worker;
    mod worker;
}

/// Runs of workflows, and what they wait for.
mod runs {
    mod concurrent_senders;
    mod ending_runs;
    mod events_in_order;
    mod external_run_script;
    mod failing_visits;
    mod hooks_api;
    mod killed_runners;
    mod run_leases;
    mod runner_function;
    mod running;
    mod runs_api;
    mod runs_bad_input;
    mod runs_cli;
    mod senders_and_readers;
    mod waits;
}

/// What holds for every route of the HTTP API.
mod api {
    mod bad_input;
    mod idempotency_keys;
    mod random_requests;
}

/// `ledgerline local` as a process, and the commands beside it.
mod local_mode {
    mod attention;
    mod command_line;
    mod demo;
    mod full_disk;
    mod hostile_requests;
    mod killed_local_mode;
    mod log_pipes;
    mod lost_files;
    mod readme;
}

/// The template, compared with local mode.
mod deployment {
    mod policies;
    mod template;
}

/// `ledgerline verify`: what is stored, compared with the ledger.
mod verifying;
