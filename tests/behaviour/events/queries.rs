use std::collections::BTreeSet;

use ledgerline_event::keys::Scope;
use ledgerline_ledger::{EventFilter, EventQuery, Order};

use ledgerline_test_support::{Store, admitted, at, event, name, seeds};

const TIME: u64 = 1_767_453_739_000;

/// Random events of two tenants over few names, so that every index holds a mixture.
#[tokio::test(flavor = "multi_thread")]
async fn every_query_finds_exactly_the_tenants_own_events_in_order_over_all_pages() {
    let store = Store::start(None).await;
    let saver = store.saver();
    let payloads = ledgerline_store::Payloads::new(store.clients.s3.clone(), &store.names.payload_bucket);
    let reader =
        ledgerline_ledger::Reader::new(store.clients.dynamo.clone(), &store.names.events_table, payloads);
    for seed in seeds(3) {
        let mut random = fastrand::Rng::with_seed(seed);
        let tenants = [format!("a{seed}"), format!("b{seed}")];
        let (app_1, app_2) = (format!("app-1-{seed}"), format!("app-2-{seed}"));
        let mut events = Vec::new();
        for n in 0..120 {
            let mut event =
                event(&tenants[random.usize(..2)], &format!("e-{n}"), at(TIME + random.u64(..60)));
            event.app_name = name(if random.bool() { &app_1 } else { &app_2 });
            event.entity_type = name(["TASK", "JOB"][random.usize(..2)]);
            event.entity_id = name(&format!("id-{}-{seed}", random.u8(..3)));
            event.event_type = name(["Task Pending", "price.changed", "price.dropped"][random.usize(..3)]);
            events.push(event);
        }
        let batch: Vec<_> = events.iter().cloned().map(admitted).collect();
        for chunk in batch.chunks(10) {
            assert!(saver.save(chunk, at(TIME + 100)).await.iter().all(Result::is_ok));
        }

        let id = format!("id-1-{seed}");
        let scopes = [
            Scope::Tenant,
            Scope::Entity("TASK", &id),
            Scope::App(&app_1),
            Scope::AppEntity(&app_1, "TASK", &id),
            Scope::Type("price.changed"),
            Scope::TypeEntity("price.changed", "TASK", &id),
            Scope::TypeApp("price.changed", &app_1),
            Scope::TypeAppEntity("price.changed", &app_1, "TASK", &id),
        ];
        for scope in scopes {
            let (since, until) = (at(TIME + 10), at(TIME + 50));
            let belongs = |event: &&ledgerline_event::Event| {
                let entity = |kind: &str, id: &str| *event.entity_type == *kind && *event.entity_id == *id;
                let (app, kind) =
                    (|app: &str| *event.app_name == *app, |kind: &str| *event.event_type == *kind);
                let fits = match scope {
                    Scope::Tenant => true,
                    Scope::Entity(k, i) => entity(k, i),
                    Scope::App(a) => app(a),
                    Scope::AppEntity(a, k, i) => app(a) && entity(k, i),
                    Scope::Type(t) => kind(t),
                    Scope::TypeEntity(t, k, i) => kind(t) && entity(k, i),
                    Scope::TypeApp(t, a) => kind(t) && app(a),
                    Scope::TypeAppEntity(t, a, k, i) => kind(t) && app(a) && entity(k, i),
                };
                fits && *event.tenant_id == *tenants[0] && (since..=until).contains(&event.timestamp)
            };
            let expected: BTreeSet<_> =
                events.iter().filter(belongs).map(|event| event.event_id.clone()).collect();
            for order in [Order::OldestFirst, Order::NewestFirst] {
                for (limit, rows) in [(1, 1_000), (3, 3), (100, 1_000), (100, 2)] {
                    let reader = reader.clone().reading_at_most(rows);
                    let tenant = name(&tenants[0]);
                    let query = EventQuery { since, until, order, ..EventQuery::new(&tenant, scope) };
                    let mut found = Vec::new();
                    let mut cursor = None;
                    loop {
                        let page = reader.page(&query, limit, cursor.as_deref()).await.unwrap();
                        assert!(page.items.len() <= limit);
                        let own = page.items.iter().all(|event| event.tenant_id == tenant);
                        assert!(own, "seed {seed}: {scope:?} answered another tenant's event");
                        found.extend(page.items);
                        cursor = page.cursor;
                        if cursor.is_none() {
                            break;
                        }
                    }
                    let times: Vec<_> = found.iter().map(|event| event.timestamp).collect();
                    let sorted = match order {
                        Order::OldestFirst => times.is_sorted(),
                        Order::NewestFirst => times.iter().rev().is_sorted(),
                    };
                    assert!(sorted, "seed {seed}: {scope:?} {order:?}");
                    let ids: BTreeSet<_> = found.iter().map(|event| event.event_id.clone()).collect();
                    assert_eq!(ids.len(), found.len(), "seed {seed}: {scope:?} once each");
                    assert_eq!(
                        ids, expected,
                        "seed {seed}: {scope:?} {order:?} by {limit}, {rows} rows a read"
                    );
                }
            }
        }
    }
    store.embedded.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_match_globs_and_a_cursor_of_another_query_is_refused() {
    let store = Store::start(None).await;
    let saver = store.saver();
    let payloads = ledgerline_store::Payloads::new(store.clients.s3.clone(), &store.names.payload_bucket);
    let reader =
        ledgerline_ledger::Reader::new(store.clients.dynamo.clone(), &store.names.events_table, payloads);
    let mut batch = Vec::new();
    for (n, kind) in ["price.changed", "price.dropped", "prices", "hitl.approved"].into_iter().enumerate() {
        let mut event = event("t", &format!("e-{n}"), at(TIME));
        event.event_type = name(kind);
        batch.push(admitted(event));
    }
    assert!(saver.save(&batch, at(TIME)).await.iter().all(Result::is_ok));
    let tenant = name("t");
    let of = |glob: &str| {
        EventFilter { event_type: Some(glob.into()), ..EventFilter::everything() }.checked().unwrap()
    };
    for (glob, count) in [("price.*", 2), ("price?", 1), ("*", 4), ("hitl.approved", 1), ("nothing", 0)] {
        let page = reader.recent(&tenant, &of(glob), Order::NewestFirst, 10, None).await.unwrap();
        assert_eq!(page.items.len(), count, "{glob}");
    }
    let first = reader.recent(&tenant, &of("*"), Order::NewestFirst, 1, None).await.unwrap();
    let foreign =
        reader.recent(&tenant, &of("price.changed"), Order::NewestFirst, 1, first.cursor.as_deref()).await;
    assert_eq!(foreign.unwrap_err().to_string(), "cursor: belongs to a list with other filters");
    let page = reader.recent(&tenant, &of("price.changed"), Order::NewestFirst, 1, None).await.unwrap();
    assert_eq!(page.cursor, None, "an end is an end");
    let nonsense = reader.recent(&tenant, &of("*"), Order::NewestFirst, 1, Some("x")).await;
    assert_eq!(nonsense.unwrap_err().to_string(), "cursor: is not one that a list gave");
    store.embedded.stop().await;
}
