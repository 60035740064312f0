//! SSM parameters. A `SecureString` is kept as it is: the folder is the developer's own.

use rusqlite::{OptionalExtension, Row, params};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Clock;
use crate::answer::{Answer, AwsError, input};
use crate::sqs::ACCOUNT;
use crate::store::Store;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PutInput {
    name: String,
    value: String,
    r#type: Option<String>,
    #[serde(default)]
    overwrite: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NameInput {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NamesInput {
    names: Vec<String>,
}

/// Carries out one operation.
pub(crate) fn handle(store: &Store, clock: &Clock, region: &str, operation: &str, body: &[u8]) -> Answer {
    match operation {
        "PutParameter" => put(store, clock, input(body)?),
        "GetParameter" => {
            let NameInput { name } = input(body)?;
            let parameter = get(store, region, &name)?.ok_or_else(|| not_found(&name))?;
            Ok(json!({"Parameter": parameter}))
        }
        "GetParameters" => {
            let NamesInput { names } = input(body)?;
            let (mut found, mut invalid) = (Vec::new(), Vec::new());
            for name in names {
                match get(store, region, &name)? {
                    Some(parameter) => found.push(parameter),
                    None => invalid.push(name),
                }
            }
            Ok(json!({"Parameters": found, "InvalidParameters": invalid}))
        }
        "DeleteParameter" => {
            let NameInput { name } = input(body)?;
            match store.lock().execute("DELETE FROM parameters WHERE name = ?1", [&name])? {
                0 => Err(not_found(&name)),
                _ => Ok(json!({})),
            }
        }
        _ => Err(AwsError::unknown_operation(operation)),
    }
}

fn put(store: &Store, clock: &Clock, input: PutInput) -> Answer {
    let kind = input.r#type.as_deref().unwrap_or("String");
    if !["String", "StringList", "SecureString"].contains(&kind) {
        return Err(AwsError::sender(
            "ValidationException",
            format!("Value '{kind}' at 'type' is not valid."),
        ));
    }
    let now = clock();
    let version: Option<i64> = store.transaction(|tx| {
        let before: Option<i64> = tx
            .query_row("SELECT version FROM parameters WHERE name = ?1", [&input.name], |row| row.get(0))
            .optional()?;
        if before.is_some() && !input.overwrite {
            return Ok(None);
        }
        let version = before.unwrap_or(0) + 1;
        // An overwrite that does not say the type keeps it.
        tx.execute(
            "INSERT INTO parameters (name, kind, value, version, modified_at) VALUES (?1, ?2, ?3, ?4, ?5) \
             ON CONFLICT (name) DO UPDATE SET kind = CASE WHEN ?6 THEN excluded.kind ELSE kind END, \
             value = excluded.value, version = excluded.version, modified_at = excluded.modified_at",
            params![input.name, kind, input.value, version, now, input.r#type.is_some()],
        )?;
        Ok(Some(version))
    })?;
    match version {
        Some(version) => Ok(json!({"Version": version, "Tier": "Standard"})),
        None => Err(AwsError::sender(
            "ParameterAlreadyExists",
            "The parameter already exists. To overwrite this value, set the overwrite option in the request to true.",
        )),
    }
}

fn get(store: &Store, region: &str, name: &str) -> Result<Option<Value>, AwsError> {
    let parameter = |row: &Row<'_>| {
        let (kind, value): (String, String) = (row.get(0)?, row.get(1)?);
        let (version, modified_at): (i64, u64) = (row.get(2)?, row.get(3)?);
        Ok(json!({
            "Name": name, "Type": kind, "Value": value, "Version": version, "DataType": "text",
            "LastModifiedDate": modified_at as f64 / 1000.0,
            "ARN": format!("arn:aws:ssm:{region}:{ACCOUNT}:parameter/{}", name.trim_start_matches('/')),
        }))
    };
    let found = store
        .lock()
        .query_row(
            "SELECT kind, value, version, modified_at FROM parameters WHERE name = ?1",
            [name],
            parameter,
        )
        .optional()?;
    Ok(found)
}

fn not_found(name: &str) -> AwsError {
    AwsError::sender("ParameterNotFound", format!("Parameter {name} not found."))
}
