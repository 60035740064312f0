//! Buses and their rules, kept in memory and written through.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rusqlite::params;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Admission;
use super::pattern::Pattern;
use crate::Clock;
use crate::answer::AwsError;
use crate::sqs::{ACCOUNT, Queues};
use crate::store::Store;

/// The bus that is always there.
pub(crate) const DEFAULT_BUS: &str = "default";

/// The event buses of the account.
pub(crate) struct Buses {
    pub(crate) queues: Arc<Queues>,
    pub(crate) clock: Clock,
    pub(crate) region: String,
    pub(crate) admission: Option<Admission>,
    store: Arc<Store>,
    buses: RwLock<BTreeMap<String, Bus>>,
}

/// A bus.
#[derive(Default)]
pub(crate) struct Bus {
    pub(crate) created_at: u64,
    pub(crate) rules: BTreeMap<String, Rule>,
}

/// A rule, with its pattern ready for use.
#[derive(Clone)]
pub(crate) struct Rule {
    pub(crate) record: RuleRecord,
    pub(crate) pattern: Option<Pattern>,
}

/// A rule as it is stored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RuleRecord {
    pub(crate) pattern: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) enabled: bool,
    /// By target id, as they were put.
    pub(crate) targets: BTreeMap<String, Value>,
}

impl Rule {
    pub(crate) fn new(record: RuleRecord) -> Result<Self, String> {
        let pattern = record.pattern.as_deref().map(Pattern::parse).transpose()?;
        Ok(Self { record, pattern })
    }
}

impl Buses {
    /// Reads the buses from the store.
    pub(crate) fn open(
        store: Arc<Store>,
        queues: Arc<Queues>,
        clock: Clock,
        region: String,
        admission: Option<Admission>,
    ) -> rusqlite::Result<Self> {
        let mut buses = BTreeMap::from([(DEFAULT_BUS.to_owned(), Bus::default())]);
        {
            let connection = store.lock();
            let mut rows = connection.prepare("SELECT name, created_at FROM event_buses")?;
            for row in rows.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, u64>(1)?)))? {
                let (name, created_at) = row?;
                buses.insert(name, Bus { created_at, rules: BTreeMap::new() });
            }
            let mut rows = connection.prepare("SELECT bus, name, record FROM event_rules")?;
            let text = |row: &rusqlite::Row<'_>| -> rusqlite::Result<[String; 3]> {
                Ok([row.get(0)?, row.get(1)?, row.get(2)?])
            };
            for row in rows.query_map([], text)? {
                let [bus, name, record] = row?;
                let rule = serde_json::from_str(&record).map_err(|e| e.to_string()).and_then(Rule::new);
                match (rule, buses.get_mut(&bus)) {
                    (Ok(rule), Some(bus)) => _ = bus.rules.insert(name, rule),
                    (Ok(_), None) => tracing::warn!(bus, name, "a rule without a bus is ignored"),
                    (Err(error), _) => tracing::warn!(bus, name, error, "an unreadable rule is ignored"),
                }
            }
        }
        Ok(Self { queues, clock, region, admission, store, buses: RwLock::new(buses) })
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, Bus>> {
        self.buses.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Bus>> {
        self.buses.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds a bus.
    pub(crate) fn create(&self, name: &str) -> Result<(), AwsError> {
        let mut buses = self.write();
        if buses.contains_key(name) {
            return Err(AwsError::sender(
                "ResourceAlreadyExistsException",
                format!("Event bus {name} already exists."),
            ));
        }
        let created_at = (self.clock)();
        self.store.lock().execute(
            "INSERT INTO event_buses (name, created_at) VALUES (?1, ?2)",
            params![name, created_at],
        )?;
        buses.insert(name.to_owned(), Bus { created_at, rules: BTreeMap::new() });
        Ok(())
    }

    /// Takes a bus and its rules away.
    pub(crate) fn delete(&self, name: &str) -> Result<(), AwsError> {
        if name == DEFAULT_BUS {
            return Err(AwsError::sender("ValidationException", "Cannot delete event bus default."));
        }
        let mut buses = self.write();
        self.store.transaction(|tx| {
            tx.execute("DELETE FROM event_rules WHERE bus = ?1", [name])?;
            tx.execute("DELETE FROM event_buses WHERE name = ?1", [name])
        })?;
        buses.remove(name);
        Ok(())
    }

    /// Puts a rule in place of what it was; `change` sees the rule there is.
    pub(crate) fn change_rule(
        &self,
        bus: &str,
        name: &str,
        change: impl FnOnce(Option<RuleRecord>) -> Result<RuleRecord, AwsError>,
    ) -> Result<(), AwsError> {
        let mut buses = self.write();
        let rules = &mut buses.get_mut(bus).ok_or_else(|| no_bus(bus))?.rules;
        let record = change(rules.get(name).map(|rule| rule.record.clone()))?;
        let stored = serde_json::to_string(&record).map_err(|e| AwsError::internal(e.to_string()))?;
        let rule = Rule::new(record).map_err(|why| {
            AwsError::sender(
                "InvalidEventPatternException",
                format!("Event pattern is not valid. Reason: {why}"),
            )
        })?;
        self.store.lock().execute(
            "INSERT INTO event_rules (bus, name, record) VALUES (?1, ?2, ?3) \
             ON CONFLICT DO UPDATE SET record = excluded.record",
            params![bus, name, stored],
        )?;
        rules.insert(name.to_owned(), rule);
        Ok(())
    }

    /// Takes a rule away; one that is not there is no error.
    pub(crate) fn delete_rule(&self, bus: &str, name: &str) -> Result<(), AwsError> {
        let mut buses = self.write();
        let rules = &mut buses.get_mut(bus).ok_or_else(|| no_bus(bus))?.rules;
        if rules.get(name).is_some_and(|rule| !rule.record.targets.is_empty()) {
            return Err(AwsError::sender(
                "ValidationException",
                "Rule can't be deleted since it has targets.",
            ));
        }
        self.store.lock().execute("DELETE FROM event_rules WHERE bus = ?1 AND name = ?2", [bus, name])?;
        rules.remove(name);
        Ok(())
    }

    pub(crate) fn bus_arn(&self, name: &str) -> String {
        format!("arn:aws:events:{}:{ACCOUNT}:event-bus/{name}", self.region)
    }

    pub(crate) fn rule_arn(&self, bus: &str, name: &str) -> String {
        let path = if bus == DEFAULT_BUS { name.to_owned() } else { format!("{bus}/{name}") };
        format!("arn:aws:events:{}:{ACCOUNT}:rule/{path}", self.region)
    }
}

/// The bus a request means, which may be given by name or by ARN.
pub(crate) fn bus_name(given: Option<&str>) -> &str {
    let given = given.unwrap_or(DEFAULT_BUS);
    match given.split_once(":event-bus/") {
        Some((arn, name)) if arn.starts_with("arn:") => name,
        _ => given,
    }
}

pub(crate) fn no_bus(name: &str) -> AwsError {
    AwsError::sender("ResourceNotFoundException", format!("Event bus {name} does not exist."))
}

pub(crate) fn no_rule(bus: &str, name: &str) -> AwsError {
    AwsError::sender("ResourceNotFoundException", format!("Rule {name} does not exist on EventBus {bus}."))
}
