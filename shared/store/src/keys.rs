//! The one place that builds and parses the keys of control records.

use ledgerline_event::Millis;

/// Partition and sort key of a control record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ControlKey {
    /// The partition.
    pub pk: String,
    /// The place in it.
    pub sk: String,
}

fn key(pk: impl Into<String>, sk: impl Into<String>) -> ControlKey {
    ControlKey { pk: pk.into(), sk: sk.into() }
}

/// The partition of all tenants.
pub const TENANTS: &str = "TENANTS";
/// The partition of all API keys.
pub const API_KEYS: &str = "APIKEYS";

/// What health checks write and read again.
pub fn health_probe() -> ControlKey {
    key("HEALTH", "probe")
}

/// A tenant in the registry.
pub fn tenant(tenant: &str) -> ControlKey {
    key(TENANTS, tenant)
}

/// The partition of a tenant's drain states.
pub fn drains(tenant: &str) -> String {
    format!("DRAIN#{tenant}")
}

/// One drainer's state for a tenant.
pub fn drain(tenant: &str, drainer: &str) -> ControlKey {
    key(drains(tenant), drainer)
}

/// The late arrivals of a tenant.
pub fn late_arrivals(tenant: &str) -> String {
    format!("LATE#{tenant}")
}

/// A pointer to a late arrival: the stamp first, so that the partition sorts by it.
pub fn late_pointer(tenant: &str, stamp: Millis, event_sk: &str) -> ControlKey {
    key(late_arrivals(tenant), format!("{stamp}#{event_sk}"))
}

/// Stamp and event sort key of a pointer.
pub fn parse_late_pointer(sk: &str) -> Option<(Millis, &str)> {
    let (stamp, event_sk) = sk.split_once('#')?;
    let stamp = stamp.parse::<u64>().ok().and_then(|value| Millis::try_from(value).ok())?;
    Some((stamp, event_sk))
}

/// The partition in which versions before 0.1.0 put all dirty marks. It is still read.
pub const DIRTY: &str = "DIRTY";
/// How many partitions the dirty marks have: one takes about a thousand writes a second.
pub const DIRTY_SHARDS: u8 = 8;

/// The mark that a drainer has undrained work of a tenant.
pub fn dirty_mark(tenant: &str, drainer: &str) -> ControlKey {
    let mark = old_dirty_mark(tenant, drainer);
    key(dirty_shard(hash(mark.sk.bytes(), DIRTY_SHARDS)), mark.sk)
}

/// The same mark in the next partition, for when its own partition takes no writes.
pub fn fallback_dirty_mark(tenant: &str, drainer: &str) -> ControlKey {
    let mark = old_dirty_mark(tenant, drainer);
    key(dirty_shard((hash(mark.sk.bytes(), DIRTY_SHARDS) + 1) % DIRTY_SHARDS), mark.sk)
}

/// The key that the same mark has in versions before 0.1.0.
pub fn old_dirty_mark(tenant: &str, drainer: &str) -> ControlKey {
    key(DIRTY, format!("{tenant}#{drainer}"))
}

/// Every partition of dirty marks, that of versions before 0.1.0 included.
pub fn dirty_partitions() -> impl Iterator<Item = String> {
    std::iter::once(DIRTY.to_owned()).chain((0..DIRTY_SHARDS).map(dirty_shard))
}

/// Whether a partition holds dirty marks.
pub fn is_dirty_partition(pk: &str) -> bool {
    pk.strip_prefix(DIRTY).is_some_and(|shard| shard.is_empty() || shard.starts_with('#'))
}

fn dirty_shard(shard: u8) -> String {
    format!("{DIRTY}#{shard}")
}

/// Tenant and drainer of a dirty mark.
pub fn parse_dirty_mark(sk: &str) -> Option<(&str, &str)> {
    sk.split_once('#')
}

/// A drainer's round over all tenants: when the last complete one began, and how far the present one is.
pub fn schedule(drainer: &str) -> ControlKey {
    key("SCHEDULE", drainer)
}

/// What a sweep stores about itself: its cursor, or the time of its end.
pub fn sweep_record(what: &str) -> ControlKey {
    key("SWEEP", what)
}

/// The cursor of the sweep of runs.
pub fn run_sweep_cursor() -> ControlKey {
    key("RUNSWEEP", "RUNSWEEP")
}

/// When the last sweep of runs came to its end.
pub fn run_sweep_ended() -> ControlKey {
    key("RUNSWEEP", "ENDED")
}

/// All subscriptions of a tenant.
pub fn subscriptions(tenant: &str) -> String {
    format!("SUBSCRIPTIONS#{tenant}")
}

/// One subscription.
pub fn subscription(tenant: &str, id: &str) -> ControlKey {
    key(subscriptions(tenant), id)
}

/// All workflow types of a tenant.
pub fn workflow_types(tenant: &str) -> String {
    format!("WORKFLOWS#{tenant}")
}

/// One workflow type.
pub fn workflow_type(tenant: &str, workflow_type: &str) -> ControlKey {
    key(workflow_types(tenant), workflow_type)
}

/// The claim of one start: by drainer, epoch, subscription and event. All claims of an event are one partition.
pub fn start_claim(
    tenant: &str,
    event_sk: &str,
    drainer: &str,
    epoch: u64,
    subscription: &str,
) -> ControlKey {
    key(format!("CLAIM#{tenant}#{event_sk}"), format!("START#{drainer}#{epoch}#{subscription}"))
}

/// The claim of a start that its type's idempotency key decides. The key comes last: it may hold anything.
pub fn keyed_start_claim(
    tenant: &str,
    drainer: &str,
    workflow_type: &str,
    idempotency_key: &str,
) -> ControlKey {
    key(format!("CLAIM#{tenant}#KEY#{drainer}#{workflow_type}#{idempotency_key}"), "START")
}

/// The claim of a start by hand.
pub fn manual_start_claim(tenant: &str, start_id: &str) -> ControlKey {
    key(format!("CLAIM#{tenant}#MANUAL#{start_id}"), "START")
}

/// What the first start by hand under an idempotency key made. The key comes last: it may hold anything.
pub fn start_request(tenant: &str, idempotency_key: &str) -> ControlKey {
    key(format!("REQUEST#{tenant}#START#{idempotency_key}"), REQUEST)
}

/// What the first sending of an event under an idempotency key made.
pub fn send_request(tenant: &str, idempotency_key: &str) -> ControlKey {
    key(format!("REQUEST#{tenant}#SEND#{idempotency_key}"), REQUEST)
}

/// What the first recording of an event under an idempotency key made.
pub fn record_request(tenant: &str, idempotency_key: &str) -> ControlKey {
    key(format!("REQUEST#{tenant}#RECORD#{idempotency_key}"), REQUEST)
}

/// The place of a request in its partition.
const REQUEST: &str = "REQUEST";

/// What the first payload under an idempotency key became, beside its hook.
pub fn hook_request(hook: &ControlKey, idempotency_key: &str) -> ControlKey {
    key(hook.pk.clone(), format!("{REQUEST}#{idempotency_key}"))
}

/// The claim of recording an event.
pub fn record_claim(tenant: &str, event_id: &str) -> ControlKey {
    key(format!("CLAIM#{tenant}#RECORDED#{event_id}"), "RECORDED")
}

/// The claim of a notice about an event's dispatch. `subscription` is empty where it is about all of them.
pub fn notice_claim(
    tenant: &str,
    event_sk: &str,
    drainer: &str,
    epoch: u64,
    subscription: &str,
    notice: &str,
) -> ControlKey {
    key(format!("CLAIM#{tenant}#{event_sk}"), format!("{notice}#{drainer}#{epoch}#{subscription}"))
}

/// Everything about one task: a record per generation, and its summary.
pub fn task(tenant: &str, request_id: &str) -> String {
    format!("TASK#{tenant}#{request_id}")
}

/// How the records of a task's generations begin.
pub const GENERATIONS: &str = "GEN#";

/// The record of one generation of a task.
pub fn task_record(tenant: &str, request_id: &str, generation: u32) -> ControlKey {
    key(task(tenant, request_id), format!("{GENERATIONS}{generation:06}"))
}

/// The generation that a record is about.
pub fn parse_generation(sk: &str) -> Option<u32> {
    sk.strip_prefix(GENERATIONS)?.parse().ok()
}

/// The message of one generation of a task, where its record does not keep it.
pub fn task_message(tenant: &str, request_id: &str, generation: u32) -> ControlKey {
    key(task(tenant, request_id), format!("MESSAGE#{generation:06}"))
}

/// The same under a name of its own, so that two submissions of one id do not overwrite each other's.
pub fn own_task_message(tenant: &str, request_id: &str, generation: u32, id: &str) -> ControlKey {
    key(task(tenant, request_id), format!("MESSAGE#{generation:06}#{id}"))
}

/// The message of a task under the name that its record has kept.
pub fn named_task_message(tenant: &str, request_id: &str, name: &str) -> ControlKey {
    key(task(tenant, request_id), name)
}

/// Tenant and id of a task.
pub fn parse_task(pk: &str) -> Option<(&str, &str)> {
    pk.strip_prefix("TASK#")?.split_once('#')
}

/// A task as its events tell it.
pub fn task_summary(tenant: &str, request_id: &str) -> ControlKey {
    key(task(tenant, request_id), "SUMMARY")
}

/// Where tasks of one state are listed.
pub fn tasks_in(tenant: &str, state: &str) -> String {
    format!("TASKS#{tenant}#{state}")
}

/// Everything about one job.
pub fn job_partition(tenant: &str, job_id: &str) -> String {
    format!("JOB#{tenant}#{job_id}")
}

/// The job itself.
pub fn job(tenant: &str, job_id: &str) -> ControlKey {
    key(job_partition(tenant, job_id), "JOB")
}

/// How a job's task definitions begin.
pub const NODES: &str = "NODE#";

/// What one task of a job is.
pub fn job_node(tenant: &str, job_id: &str, task_id: &str) -> ControlKey {
    key(job_partition(tenant, job_id), format!("{NODES}{task_id}"))
}

/// How the inputs of a job's tasks begin.
pub const INPUTS: &str = "INPUT#";

/// What a task of a job is given, by the event that defined it: two events may define a task with the same id, and only
/// one of them is followed.
pub fn job_input(tenant: &str, job_id: &str, event_id: &str, task_id: &str) -> ControlKey {
    key(job_partition(tenant, job_id), format!("{INPUTS}{event_id}#{task_id}"))
}

/// How the outcomes of a job's tasks begin.
pub const ENDS: &str = "END#";

/// How one task of a job ended.
pub fn job_end(tenant: &str, job_id: &str, task_id: &str) -> ControlKey {
    key(job_partition(tenant, job_id), format!("{ENDS}{task_id}"))
}

/// How the marks of those begin that wait for a task. Task ids have no `#`.
pub fn job_waits(parent: &str) -> String {
    format!("WAIT#{parent}#")
}

/// The mark that one task of a job waits for another.
pub fn job_wait(tenant: &str, job_id: &str, parent: &str, child: &str) -> ControlKey {
    key(job_partition(tenant, job_id), format!("{}{child}", job_waits(parent)))
}

/// That tasks were added to a job by an event.
pub fn job_addition(tenant: &str, job_id: &str, event_id: &str) -> ControlKey {
    key(job_partition(tenant, job_id), format!("ADDED#{event_id}"))
}

/// How the marks of additions begin that came before their job.
pub const EARLY_ADDITIONS: &str = "EARLY#";

/// The mark of an addition that came before its job.
pub fn early_addition(tenant: &str, job_id: &str, event_id: &str) -> ControlKey {
    key(job_partition(tenant, job_id), format!("{EARLY_ADDITIONS}{event_id}"))
}

/// The claim of the event that says that a generation of a task of a job failed.
pub fn job_failure_claim(tenant: &str, job_id: &str, task_id: &str, generation: u32) -> ControlKey {
    key(format!("CLAIM#{tenant}#JOB#{job_id}"), format!("FAILURE#{task_id}#{generation:06}"))
}

/// The claim of one resume of a job.
pub fn job_resume_claim(tenant: &str, job_id: &str, generation: u32) -> ControlKey {
    key(format!("CLAIM#{tenant}#JOB#{job_id}"), format!("RESUME#{generation:06}"))
}

/// Where jobs of one state are listed.
pub fn jobs_in(tenant: &str, state: &str) -> String {
    format!("JOBS#{tenant}#{state}")
}

/// Everything about one run: its record, its log, what it waits for by time.
pub fn run_partition(tenant: &str, run_id: &str) -> String {
    format!("RUN#{tenant}#{run_id}")
}

/// The run itself.
pub fn run(tenant: &str, run_id: &str) -> ControlKey {
    key(run_partition(tenant, run_id), RUN)
}

/// The place of a run's record in its partition.
pub const RUN: &str = "RUN";

/// How the entries of a run's log begin.
pub const LOG: &str = "LOG#";

/// One entry of a run's log.
pub fn run_entry(tenant: &str, run_id: &str, sequence: u64) -> ControlKey {
    key(run_partition(tenant, run_id), format!("{LOG}{sequence:010}"))
}

/// The number of an entry.
pub fn parse_run_entry(sk: &str) -> Option<u64> {
    sk.strip_prefix(LOG)?.parse().ok()
}

/// A sleep or a retry of a run.
pub fn run_timer(tenant: &str, run_id: &str, entity_id: &str) -> ControlKey {
    key(run_partition(tenant, run_id), format!("TIMER#{entity_id}"))
}

/// That a run waits for the end of a task or a job.
pub fn run_awaits(tenant: &str, run_id: &str, entity_type: &str, entity_id: &str) -> ControlKey {
    key(run_partition(tenant, run_id), format!("AWAITS#{entity_type}#{entity_id}"))
}

/// Tenant and run of a key in a run's partition.
pub fn parse_run_partition(pk: &str) -> Option<(&str, &str)> {
    pk.strip_prefix("RUN#")?.split_once('#')
}

/// Where runs of one state are listed.
pub fn runs_in(tenant: &str, state: &str) -> String {
    format!("RUNS#{tenant}#{state}")
}

/// The waits for an event that are stored under `leaf`: the hash of one leaf of their criteria, or `None` for the waits
/// whose criteria have no leaf. Event names have no `#`.
pub fn waiters(tenant: &str, event_name: &str, leaf: Option<u64>) -> String {
    format!("WAITERS#{tenant}#{event_name}#{}", bucket(leaf))
}

/// Tenant and event name of those who wait.
pub fn parse_waiters(pk: &str) -> Option<(&str, &str)> {
    pk.strip_prefix("WAITERS#")?.split_once('#')
}

/// One wait for an event. `leaf` is as in [`waiters`].
pub fn waiter(tenant: &str, event_name: &str, leaf: Option<u64>, run_id: &str, wait_id: &str) -> ControlKey {
    key(waiters(tenant, event_name, leaf), format!("{run_id}#{wait_id}"))
}

/// The events of a name that are stored under `leaf`: the hash of one leaf of their match. `None` is the partition that has
/// every event of the name.
pub fn sent_events(tenant: &str, event_name: &str, leaf: Option<u64>) -> String {
    format!("SENT#{tenant}#{event_name}#{}", bucket(leaf))
}

/// One sent event under one of its leaves, in the order of time. `leaf` is as in [`sent_events`].
pub fn sent_event(
    tenant: &str,
    event_name: &str,
    leaf: Option<u64>,
    time: Millis,
    event_id: &str,
) -> ControlKey {
    key(sent_events(tenant, event_name, leaf), sent_place(time, event_id))
}

/// The place of a sent event among those of its name.
pub fn sent_place(time: Millis, event_id: &str) -> String {
    format!("{time}#{event_id}")
}

/// The time in a place among sent events.
pub fn parse_sent_place(place: &str) -> Option<Millis> {
    let (time, _) = place.split_once('#')?;
    time.parse::<u64>().ok().and_then(|time| Millis::try_from(time).ok())
}

/// How far the events of one name are accepted.
pub fn sent_order(tenant: &str, event_name: &str) -> ControlKey {
    key(format!("SENT#{tenant}#{event_name}#ORDER"), "ORDER")
}

/// The time before which no event of a tenant is accepted any more. Event names are not empty.
pub fn sent_floor(tenant: &str) -> ControlKey {
    key(format!("SENT#{tenant}##FLOOR"), "FLOOR")
}

/// When the first process came that accepts sent events in order. Tenants are not empty.
pub fn sent_order_began() -> ControlKey {
    key("SENT##BEGAN", "BEGAN")
}

fn bucket(leaf: Option<u64>) -> String {
    leaf.map_or_else(|| "ANY".to_owned(), |leaf| format!("{leaf:016x}"))
}

/// The claim of sending an event.
pub fn send_claim(tenant: &str, event_id: &str) -> ControlKey {
    key(format!("CLAIM#{tenant}#SENT#{event_id}"), "SENT")
}

/// The runs that a sent event has woken.
pub fn consumed_by(tenant: &str, event_id: &str) -> String {
    format!("CONSUMED#{tenant}#{event_id}")
}

/// That a sent event has woken a run.
pub fn consumed(tenant: &str, event_id: &str, run_id: &str) -> ControlKey {
    key(consumed_by(tenant, event_id), run_id)
}

/// A hook by the digest of its generated token, which cannot be guessed.
pub fn hook(token_digest: &str) -> ControlKey {
    key(format!("HOOK##{token_digest}"), "HOOK")
}

/// A hook by a token that its workflow chose: such tokens are each tenant's own.
pub fn named_hook(tenant: &str, token: &str) -> ControlKey {
    key(format!("HOOK#{tenant}#{token}"), "HOOK")
}

/// The workflows that runners have said they can run.
pub const RUNNABLE: &str = "RUNNABLE";

/// One workflow that a runner can run.
pub fn runnable(workflow: &str) -> ControlKey {
    key(RUNNABLE, workflow)
}

/// The runs of a workflow that runners have refused.
pub fn refused_runs(workflow: &str) -> String {
    format!("REFUSED#{workflow}")
}

/// One run that a runner has refused.
pub fn refused_run(workflow: &str, tenant: &str, run_id: &str) -> ControlKey {
    key(refused_runs(workflow), format!("{tenant}#{run_id}"))
}

/// The partition of tenants with tasks under way.
pub const BUSY: &str = "BUSY";

/// The mark that a tenant has tasks under way.
pub fn busy_mark(tenant: &str) -> ControlKey {
    key(BUSY, tenant)
}

/// The claim of a tenant's health check at a minute.
pub fn health_claim(tenant: &str, minute: u64, what: &str) -> ControlKey {
    key(format!("CLAIM#{tenant}#HEALTH"), format!("{minute}#{what}"))
}

/// The claim of the alert that a drainer has stalled at a place.
pub fn stall_claim(tenant: &str, drainer: &str, cursor: &str) -> ControlKey {
    key(format!("CLAIM#{tenant}#STALL#{drainer}"), format!("AT#{cursor}"))
}

/// How many shards the index of due records has: one partition of an index takes about a thousand
/// writes a second.
pub const DUE_SHARDS: u8 = 4;

/// A shard of the index of due records.
pub fn due_shard(shard: u8) -> String {
    format!("DUE#{shard}")
}

/// The shard of a record.
pub fn due_shard_of(of: &ControlKey) -> String {
    due_shard(shard_of(of))
}

fn shard_of(of: &ControlKey) -> u8 {
    hash(of.pk.bytes().chain(of.sk.bytes()), DUE_SHARDS)
}

/// One of `shards`, which is a power of two.
fn hash(bytes: impl Iterator<Item = u8>, shards: u8) -> u8 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    u8::try_from(hash >> 32 & u64::from(shards - 1)).unwrap_or(0)
}

/// A shard of the index, of alerts: Slack may be down, and nothing else waits for them.
pub fn alert_due_shard(shard: u8) -> String {
    format!("ALERTDUE#{shard}")
}

/// The shard of an alert.
pub fn alert_due_shard_of(of: &ControlKey) -> String {
    alert_due_shard(shard_of(of))
}

/// The tenant of a claim.
pub fn parse_claim(pk: &str) -> Option<&str> {
    pk.strip_prefix("CLAIM#")?.split('#').next()
}

/// A shard of the index, of runs and their timers.
pub fn run_due_shard(shard: u8) -> String {
    format!("RUNDUE#{shard}")
}

/// The shard of a run, or of a timer of one.
pub fn run_due_shard_of(of: &ControlKey) -> String {
    run_due_shard(shard_of(of))
}

/// A shard of the index of tasks that wait for a worker.
pub fn task_due_shard(shard: u8) -> String {
    format!("TASKDUE#{shard}")
}

/// The shard of a task that waits.
pub fn task_due_shard_of(of: &ControlKey) -> String {
    task_due_shard(shard_of(of))
}

/// All parked starts of a tenant.
pub fn parked(tenant: &str) -> String {
    format!("PARKED#{tenant}")
}

/// One parked start. Its id begins with the event's time, so that the partition sorts by it.
pub fn parked_start(tenant: &str, id: &str) -> ControlKey {
    key(parked(tenant), id)
}

/// The open blocks of a drainer and tenant, and what operators ask of them.
pub fn blocks(tenant: &str, drainer: &str) -> String {
    format!("BLOCKS#{tenant}#{drainer}")
}

/// What waits together: the starts of a subscription for one entity, or all of them.
pub fn block_name(subscription: &str, entity: Option<(&str, &str)>) -> String {
    match entity {
        None => subscription.to_owned(),
        Some((entity_type, entity_id)) => format!("{subscription}#{entity_type}#{entity_id}"),
    }
}

/// How the records of blocks begin.
pub const BLOCK: &str = "BLOCK#";

/// One block.
pub fn block(tenant: &str, drainer: &str, name: &str) -> ControlKey {
    key(blocks(tenant, drainer), format!("{BLOCK}{name}"))
}

/// What an operator asks about one blocked start.
pub fn asked(tenant: &str, drainer: &str, parked_id: &str) -> ControlKey {
    key(blocks(tenant, drainer), format!("ASKED#{parked_id}"))
}

/// The starts of one block, in the order in which they joined it.
pub fn block_members(tenant: &str, drainer: &str, name: &str) -> String {
    format!("BLOCKED#{tenant}#{drainer}#{name}")
}

/// One start of a block.
pub fn block_member(tenant: &str, drainer: &str, name: &str, place: u64) -> ControlKey {
    key(block_members(tenant, drainer, name), format!("{place:012}"))
}

/// The marker of an idempotency key. The key comes last: it may hold anything.
pub fn marker(tenant: &str, idempotency_key: &str) -> ControlKey {
    key(format!("IDEMPOTENCY#{tenant}#{idempotency_key}"), "MARKER")
}

/// An API key by its id.
pub fn api_key(id: &str) -> ControlKey {
    key(API_KEYS, id)
}

/// All failed deliveries of a tenant.
pub fn failures(tenant: &str) -> String {
    format!("FAILED#{tenant}")
}

/// One failed delivery. Its id begins with the time, so that the partition sorts by it.
pub fn failure(tenant: &str, id: &str) -> ControlKey {
    key(failures(tenant), id)
}

/// The id of the failed delivery of a message: the same for every redelivery of it. A message id
/// comes from outside: no more of it than an id has, and nothing but what one is made of.
pub fn failure_id(sent_at: Millis, message_id: &str) -> String {
    let plain: String =
        message_id.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(80).collect();
    format!("{sent_at}-{plain}")
}

/// Whether `text` has the form of such an id.
pub fn is_failure_id(text: &str) -> bool {
    text.split_once('-').is_some_and(|(time, rest)| {
        let digits = time.len() == 13 && time.bytes().all(|byte| byte.is_ascii_digit());
        digits && rest.len() <= 80 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_pointer_parses_back() {
        let stamp = Millis::try_from(1_767_453_739_640).unwrap();
        let sk = "TIMESTAMP#1767453739640#EVENT#x";
        assert_eq!(parse_late_pointer(&late_pointer("t", stamp, sk).sk), Some((stamp, sk)));
        assert_eq!(parse_late_pointer("x#y"), None);
    }

    #[test]
    fn marks_are_spread_over_partitions_that_are_all_read() {
        let partitions: Vec<String> = dirty_partitions().collect();
        let used: std::collections::BTreeSet<String> =
            (0..200).map(|tenant| dirty_mark(&format!("tenant-{tenant}"), "jobs").pk).collect();
        assert_eq!(used.len(), usize::from(DIRTY_SHARDS));
        assert!(used.iter().all(|pk| partitions.contains(pk)));
        assert!(partitions.contains(&old_dirty_mark("t", "jobs").pk));
        let (mark, fallback) = (dirty_mark("t", "jobs"), fallback_dirty_mark("t", "jobs"));
        assert!(partitions.contains(&fallback.pk) && mark.pk != fallback.pk && mark.sk == fallback.sk);
        assert!(partitions.iter().all(|pk| is_dirty_partition(pk)));
        assert!(!is_dirty_partition("DIRTYX") && !is_dirty_partition("DRAIN#t"));
    }
}
