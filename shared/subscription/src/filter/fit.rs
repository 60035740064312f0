//! Whether a filter can work on some event: one that is no boolean whatever the event is, or that asks for a field which no
//! event has, is refused when it is written. What an event says in its properties is not known, so anything may be there.

use std::collections::HashMap;

use cel::{
    common::ast::{EntryExpr, Expr, LiteralValue, operators},
    parser::Expression,
};

use crate::envelope::{self, Kind};

/// Why a filter fits no event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// It asks for this field of the event.
    NoField(String),
    /// What stands where a boolean is needed is this, and it is all of the filter or begins with this word.
    NoBoolean { kind: Kind, word: Option<String> },
}

/// Whether `expression` can be true for some event.
pub(super) fn check(expression: &Expression) -> Result<(), Misfit> {
    let mut fit = Fit { variables: HashMap::new() };
    match fit.kind(expression)? {
        Kind::Bool | Kind::Unknown => Ok(()),
        kind => Err(Misfit::NoBoolean { kind, word: None }),
    }
}

struct Fit<'a> {
    /// The variables of the loops around, which may hide `event`.
    variables: HashMap<&'a str, Kind>,
}

impl<'a> Fit<'a> {
    fn kind(&mut self, expression: &'a Expression) -> Result<Kind, Misfit> {
        Ok(match &expression.expr {
            Expr::Unspecified => Kind::Unknown,
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Kind::Bool,
                LiteralValue::Int(_) | LiteralValue::UInt(_) | LiteralValue::Double(_) => Kind::Number,
                LiteralValue::String(_) => Kind::Text,
                LiteralValue::Bytes(_) => Kind::Other,
                LiteralValue::Null => Kind::Null,
            },
            Expr::Ident(name) => {
                let name = name.trim_start_matches('.');
                match self.variables.get(name) {
                    Some(kind) => *kind,
                    None if name == "event" => Kind::Map,
                    // A type.
                    None => Kind::Other,
                }
            }
            Expr::Select(select) => {
                let found = match self.is_event(&select.operand) {
                    true => field(&select.field)?,
                    false => {
                        self.kind(&select.operand)?;
                        Kind::Unknown
                    }
                };
                if select.test { Kind::Bool } else { found }
            }
            Expr::Call(call) => {
                call.target.iter().try_for_each(|target| self.kind(target).map(drop))?;
                let kinds = call.args.iter().map(|argument| self.kind(argument));
                let kinds = kinds.collect::<Result<Vec<Kind>, Misfit>>()?;
                self.call(&call.func_name, &call.args, &kinds)?
            }
            Expr::List(list) => {
                list.elements.iter().try_for_each(|element| self.kind(element).map(drop))?;
                Kind::List
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.kind(&entry.key)?;
                        self.kind(&entry.value)?;
                    }
                }
                Kind::Map
            }
            Expr::Struct(_) => Kind::Other,
            Expr::Comprehension(comprehension) => {
                self.kind(&comprehension.iter_range)?;
                let collected = self.kind(&comprehension.accu_init)?;
                let outside = self.variables.clone();
                self.variables.insert(&comprehension.iter_var, Kind::Unknown);
                self.variables.extend(comprehension.iter_var2.as_deref().map(|name| (name, Kind::Unknown)));
                self.variables.insert(&comprehension.accu_var, collected);
                self.kind(&comprehension.loop_cond)?;
                self.kind(&comprehension.loop_step)?;
                let result = self.kind(&comprehension.result)?;
                self.variables = outside;
                result
            }
        })
    }

    fn is_event(&self, expression: &Expression) -> bool {
        matches!(&expression.expr, Expr::Ident(name) if name.trim_start_matches('.') == "event")
            && !self.variables.contains_key("event")
    }

    /// What a call gives; `kinds` are those of its arguments.
    fn call(&self, name: &str, arguments: &[Expression], kinds: &[Kind]) -> Result<Kind, Misfit> {
        Ok(match (name, kinds) {
            (operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT, _) => {
                arguments.iter().zip(kinds).try_for_each(|(operand, kind)| boolean(operand, *kind))?;
                Kind::Bool
            }
            (operators::CONDITIONAL, [condition, then, otherwise]) => {
                arguments.first().map_or(Ok(()), |operand| boolean(operand, *condition))?;
                match (*then, *otherwise) {
                    (then, otherwise) if then == otherwise => then,
                    (Kind::Bool | Kind::Unknown, _) | (_, Kind::Bool | Kind::Unknown) => Kind::Unknown,
                    _ => Kind::Other,
                }
            }
            (
                operators::EQUALS
                | operators::NOT_EQUALS
                | operators::GREATER
                | operators::GREATER_EQUALS
                | operators::LESS
                | operators::LESS_EQUALS
                | operators::IN
                | operators::NOT_STRICTLY_FALSE,
                _,
            )
            | ("contains" | "startsWith" | "endsWith" | "matches" | "hasValue" | "bool", _) => Kind::Bool,
            (operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT, _) => {
                let found = match arguments {
                    [from, at] if self.is_event(from) => match &at.expr {
                        Expr::Literal(LiteralValue::String(name)) => field(name.inner())?,
                        _ => Kind::Unknown,
                    },
                    _ => Kind::Unknown,
                };
                if name == operators::INDEX { found } else { Kind::Other }
            }
            (operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO, _)
            | (operators::NEGATE | "size" | "int" | "uint" | "double", _) => Kind::Number,
            // Of numbers, texts or lists, but never of booleans.
            (operators::ADD, [left, right]) => match (*left, *right) {
                (Kind::Unknown, Kind::Unknown) => Kind::Other,
                (Kind::Unknown, kind) | (kind, Kind::Unknown) => kind,
                (left, right) if left == right => left,
                _ => Kind::Other,
            },
            ("string", _) => Kind::Text,
            ("bytes" | "type" | "of" | "none" | "ofNonZeroValue" | "or", _) => Kind::Other,
            // `dyn`, `value`, `orValue`: whatever is inside.
            _ => Kind::Unknown,
        })
    }
}

fn boolean(operand: &Expression, kind: Kind) -> Result<(), Misfit> {
    match kind {
        Kind::Bool | Kind::Unknown => Ok(()),
        kind => Err(Misfit::NoBoolean { kind, word: last_word(operand) }),
    }
}

fn field(name: &str) -> Result<Kind, Misfit> {
    envelope::field(name).ok_or_else(|| Misfit::NoField(name.to_owned()))
}

/// A word by which an operand is found in the text.
fn last_word(expression: &Expression) -> Option<String> {
    match &expression.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) => Some(select.field.clone()),
        Expr::Literal(LiteralValue::Int(number)) => Some(number.inner().to_string()),
        Expr::Call(call) if call.func_name.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            Some(call.func_name.clone())
        }
        Expr::Call(call) => call.args.last().and_then(last_word),
        _ => None,
    }
}
