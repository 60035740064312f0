//! Type check of a filter when it is written: a filter that is never a boolean, or that uses a field which no event
//! has, is refused. The types of properties are not known, so any operation on them passes.

use std::collections::HashMap;

use cel::{
    common::ast::{EntryExpr, Expr, LiteralValue, operators},
    parser::Expression,
};

use crate::envelope::{self, ValueType};

/// Why a filter can be true for no event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TypeError {
    /// It uses this field of the event.
    UnknownField(String),
    /// An operand that must be a boolean has the type `found`. `word` is a word of the operand; without one the operand
    /// is the whole filter.
    NotBoolean { found: ValueType, word: Option<String> },
}

/// Checks that `expression` can be true for some event.
pub(super) fn check(expression: &Expression) -> Result<(), TypeError> {
    let mut checker = TypeChecker { variables: HashMap::new() };
    match checker.type_of(expression)? {
        ValueType::Bool | ValueType::Unknown => Ok(()),
        kind => Err(TypeError::NotBoolean { found: kind, word: None }),
    }
}

struct TypeChecker<'a> {
    /// The variables of the enclosing loops, which may hide `event`.
    variables: HashMap<&'a str, ValueType>,
}

impl<'a> TypeChecker<'a> {
    fn type_of(&mut self, expression: &'a Expression) -> Result<ValueType, TypeError> {
        Ok(match &expression.expr {
            Expr::Unspecified => ValueType::Unknown,
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => ValueType::Bool,
                LiteralValue::Int(_) | LiteralValue::UInt(_) | LiteralValue::Double(_) => ValueType::Number,
                LiteralValue::String(_) => ValueType::Text,
                LiteralValue::Bytes(_) => ValueType::Other,
                LiteralValue::Null => ValueType::Null,
            },
            Expr::Ident(name) => {
                let name = name.trim_start_matches('.');
                match self.variables.get(name) {
                    Some(kind) => *kind,
                    None if name == "event" => ValueType::Map,
                    // The name of a type.
                    None => ValueType::Other,
                }
            }
            Expr::Select(select) => {
                let found = match self.is_event(&select.operand) {
                    true => field(&select.field)?,
                    false => {
                        self.type_of(&select.operand)?;
                        ValueType::Unknown
                    }
                };
                if select.test { ValueType::Bool } else { found }
            }
            Expr::Call(call) => {
                call.target.iter().try_for_each(|target| self.type_of(target).map(drop))?;
                let types = call.args.iter().map(|argument| self.type_of(argument));
                let types = types.collect::<Result<Vec<ValueType>, TypeError>>()?;
                self.call(&call.func_name, &call.args, &types)?
            }
            Expr::List(list) => {
                list.elements.iter().try_for_each(|element| self.type_of(element).map(drop))?;
                ValueType::List
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.type_of(&entry.key)?;
                        self.type_of(&entry.value)?;
                    }
                }
                ValueType::Map
            }
            Expr::Struct(_) => ValueType::Other,
            Expr::Comprehension(comprehension) => {
                self.type_of(&comprehension.iter_range)?;
                let collected = self.type_of(&comprehension.accu_init)?;
                let outside = self.variables.clone();
                self.variables.insert(&comprehension.iter_var, ValueType::Unknown);
                self.variables
                    .extend(comprehension.iter_var2.as_deref().map(|name| (name, ValueType::Unknown)));
                self.variables.insert(&comprehension.accu_var, collected);
                self.type_of(&comprehension.loop_cond)?;
                self.type_of(&comprehension.loop_step)?;
                let result = self.type_of(&comprehension.result)?;
                self.variables = outside;
                result
            }
        })
    }

    fn is_event(&self, expression: &Expression) -> bool {
        matches!(&expression.expr, Expr::Ident(name) if name.trim_start_matches('.') == "event")
            && !self.variables.contains_key("event")
    }

    /// The type of a call; `types` are those of its arguments.
    fn call(
        &self,
        name: &str,
        arguments: &[Expression],
        types: &[ValueType],
    ) -> Result<ValueType, TypeError> {
        Ok(match (name, types) {
            (operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT, _) => {
                arguments.iter().zip(types).try_for_each(|(operand, kind)| boolean(operand, *kind))?;
                ValueType::Bool
            }
            (operators::CONDITIONAL, [condition, then, otherwise]) => {
                arguments.first().map_or(Ok(()), |operand| boolean(operand, *condition))?;
                match (*then, *otherwise) {
                    (then, otherwise) if then == otherwise => then,
                    (ValueType::Bool | ValueType::Unknown, _) | (_, ValueType::Bool | ValueType::Unknown) => {
                        ValueType::Unknown
                    }
                    _ => ValueType::Other,
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
            | ("contains" | "startsWith" | "endsWith" | "matches" | "hasValue" | "bool", _) => {
                ValueType::Bool
            }
            (operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT, _) => {
                let found = match arguments {
                    [from, at] if self.is_event(from) => match &at.expr {
                        Expr::Literal(LiteralValue::String(name)) => field(name.inner())?,
                        _ => ValueType::Unknown,
                    },
                    _ => ValueType::Unknown,
                };
                if name == operators::INDEX { found } else { ValueType::Other }
            }
            (operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO, _)
            | (operators::NEGATE | "size" | "int" | "uint" | "double", _) => ValueType::Number,
            // `+` adds numbers, texts or lists, but never booleans.
            (operators::ADD, [left, right]) => match (*left, *right) {
                (ValueType::Unknown, ValueType::Unknown) => ValueType::Other,
                (ValueType::Unknown, kind) | (kind, ValueType::Unknown) => kind,
                (left, right) if left == right => left,
                _ => ValueType::Other,
            },
            ("string", _) => ValueType::Text,
            ("bytes" | "type" | "of" | "none" | "ofNonZeroValue" | "or", _) => ValueType::Other,
            // `dyn`, `value`, `orValue`: the type of their argument.
            _ => ValueType::Unknown,
        })
    }
}

fn boolean(operand: &Expression, kind: ValueType) -> Result<(), TypeError> {
    match kind {
        ValueType::Bool | ValueType::Unknown => Ok(()),
        kind => Err(TypeError::NotBoolean { found: kind, word: last_word(operand) }),
    }
}

fn field(name: &str) -> Result<ValueType, TypeError> {
    envelope::field(name).ok_or_else(|| TypeError::UnknownField(name.to_owned()))
}

/// A word of the operand, by which its position in the text is found.
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
