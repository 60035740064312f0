//! A naive polling loop: it reads a page by cursor, tries one regex after another, makes one write per start, and writes
//! the cursor at the end of the page. It costs little because it promises little: a second loop would do the same work
//! again, and a loop that dies repeats its page.

use std::collections::HashMap;

use anyhow::Context;
use aws_sdk_dynamodb::{Client, types::AttributeValue};
use ledgerline_event::{Name, keys};
use ledgerline_ledger::Names;
use ledgerline_store::{ControlTable, keys as control_keys};
use ledgerline_subscription::Subscription;
use serde_json::json;
use ulid::Ulid;

use crate::one_by_one::OneByOne;

const PAGE: i32 = 500;
/// Before every place in a time line.
const BEGINNING: &str = "T";

type Item = HashMap<String, AttributeValue>;

/// The loop for one tenant.
pub(crate) struct NaiveLoop {
    dynamo: Client,
    events_table: String,
    control_table: String,
    tenant: Name,
}

/// What one drain did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) events: usize,
    pub(crate) starts: usize,
}

impl NaiveLoop {
    pub(crate) fn new(dynamo: Client, names: &Names, tenant: &Name) -> Self {
        let (events_table, control_table) = (names.events_table.clone(), names.control_table.clone());
        Self { dynamo, events_table, control_table, tenant: tenant.clone() }
    }

    /// Goes back to the beginning.
    pub(crate) async fn rewind(&self) -> anyhow::Result<()> {
        self.write("CURSOR", [("lastEvent", BEGINNING)]).await
    }

    /// Reads the subscriptions once, then page after page until there are none.
    pub(crate) async fn drain(&self) -> anyhow::Result<Passed> {
        let control = ControlTable::new(self.dynamo.clone(), &self.control_table);
        let subscriptions: Vec<Subscription> =
            control.all(&control_keys::subscriptions(&self.tenant)).await?;
        let globs = OneByOne::new(subscriptions.iter().map(|one| one.event_type_glob.as_str()))?;
        let mut passed = Passed::default();
        loop {
            let cursor = self.cursor().await?;
            let rows = self.page(&cursor).await?;
            let Some(last) = rows.last() else { return Ok(passed) };
            for row in &rows {
                for number in globs.matching(field(row, "eventType")?) {
                    self.start(&subscriptions[number], row).await?;
                    passed.starts += 1;
                }
            }
            passed.events += rows.len();
            self.write("CURSOR", [("lastEvent", field(last, "SK")?)]).await?;
        }
    }

    async fn cursor(&self) -> anyhow::Result<String> {
        let get = self.dynamo.get_item().table_name(&self.control_table).consistent_read(true);
        let answer = get.set_key(Some(self.key("CURSOR"))).send().await?;
        Ok(field(&answer.item.unwrap_or_default(), "lastEvent")?.to_owned())
    }

    async fn page(&self, after: &str) -> anyhow::Result<Vec<Item>> {
        let answer = self
            .dynamo
            .query()
            .table_name(&self.events_table)
            .consistent_read(true)
            .key_condition_expression("PK = :pk AND SK > :after")
            .expression_attribute_values(":pk", text(&keys::partition(&self.tenant)))
            .expression_attribute_values(":after", text(after))
            .limit(PAGE)
            .send()
            .await?;
        Ok(answer.items.unwrap_or_default())
    }

    async fn start(&self, subscription: &Subscription, event: &Item) -> anyhow::Result<()> {
        let (event_type, event_id) = (field(event, "eventType")?, field(event, "eventId")?);
        let input = json!({ "event": event_id, "entity": field(event, "entityId")? }).to_string();
        self.write(
            &format!("START#{}", Ulid::generate()),
            [
                ("workflowType", subscription.workflow_type.as_str()),
                ("input", &input),
                ("invokedBy", &format!("event:{event_type}:{event_id}")),
            ],
        )
        .await
    }

    async fn write<const N: usize>(&self, place: &str, fields: [(&str, &str); N]) -> anyhow::Result<()> {
        let mut item = self.key(place);
        item.extend(fields.map(|(name, value)| (name.to_owned(), text(value))));
        self.dynamo.put_item().table_name(&self.control_table).set_item(Some(item)).send().await?;
        Ok(())
    }

    fn key(&self, place: &str) -> Item {
        HashMap::from([
            ("PK".to_owned(), text(&format!("NAIVE-LOOP#{}", self.tenant))),
            ("SK".to_owned(), text(place)),
        ])
    }
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn field<'a>(item: &'a Item, name: &'static str) -> anyhow::Result<&'a str> {
    let value = item.get(name).and_then(|value| value.as_s().ok());
    Ok(value.with_context(|| format!("a row without {name}"))?)
}
