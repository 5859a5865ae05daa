//! Shapes of single values in the file.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::de::At;

/// Defines a text with a format: the schema names the format, `parse/` parses it.
macro_rules! text_form {
    ($(#[$doc:meta])* $name:ident, $form:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, serde::Deserialize)]
        #[serde(transparent)]
        pub(crate) struct $name(String);

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                $name(text.to_owned())
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "x-form": $form })
            }
        }
    };
}

text_form!(
    /// `500ms`, `2s`, `5m`, `1h`, `7d`
    DurationText, "duration"
);
text_form!(
    /// `512B`, `32KiB`, `1MiB`, `2GiB`
    SizeText, "size"
);
text_form!(
    /// `512B/s`, `32KiB/s`, `1MiB/s`, `2GiB/s`
    RateText, "rate"
);
text_form!(
    /// Listening address.
    BindText, "listen address"
);
text_form!(
    /// Address of a backend.
    BackendText, "backend address"
);
text_form!(
    /// Permission bits.
    ModeText, "file mode"
);
text_form!(
    /// Trusted peers.
    NetworkText, "network"
);
text_form!(
    /// Entry of an access list.
    EntryText, "list entry"
);
text_form!(
    /// Path of files of the configuration.
    PatternText, "path"
);
text_form!(
    /// An absolute path.
    PathText, "path"
);

/// Text, number or switch.
#[derive(Clone, Debug)]
pub(crate) enum Scalar {
    Text(String),
    Integer(i64),
    Switch(bool),
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl Visitor<'_> for Any {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a single value")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(text.to_owned()))
            }

            fn visit_i64<E: Error>(self, integer: i64) -> Result<Scalar, E> {
                Ok(Scalar::Integer(integer))
            }

            fn visit_bool<E: Error>(self, switch: bool) -> Result<Scalar, E> {
                Ok(Scalar::Switch(switch))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

pub(crate) fn word_or_integer(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [{ "type": "string" }, { "type": "integer" }] })
}

pub(crate) fn switch_or_integer(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [{ "type": "boolean" }, { "type": "integer" }] })
}

pub(crate) fn header_conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": { "anyOf": [{ "type": "string" }, { "type": "boolean", "const": true }] },
    })
}

/// One value, or a list of them.
#[derive(Clone, Debug)]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Vec<At<T>>),
}

impl<'de, T: Deserialize<'de> + for<'a> From<&'a str>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + for<'a> From<&'a str>> Visitor<'de> for Either<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of texts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(OneOrMany::One(T::from(text)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = list.next_element()? {
                    entries.push(entry);
                }
                Ok(OneOrMany::Many(entries))
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("OneOrMany_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }
}

/// A text, or a table with more settings.
#[derive(Clone, Debug)]
pub(crate) enum TextOr<T, U> {
    Text(T),
    Table(Box<U>),
}

impl<'de, T: for<'a> From<&'a str>, U: Deserialize<'de>> Deserialize<'de> for TextOr<T, U> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T, U>(PhantomData<(T, U)>);

        impl<'de, T: for<'a> From<&'a str>, U: Deserialize<'de>> Visitor<'de> for Either<T, U> {
            type Value = TextOr<T, U>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a table")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(TextOr::Text(T::from(text)))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                U::deserialize(MapAccessDeserializer::new(map)).map(|table| TextOr::Table(Box::new(table)))
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}

impl<T: JsonSchema, U: JsonSchema> JsonSchema for TextOr<T, U> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("{}_or_{}", T::schema_name(), U::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [generator.subschema_for::<T>(), generator.subschema_for::<U>()] })
    }
}
