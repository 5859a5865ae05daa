//! Deserializes the tree of values into the structs of `raw.rs`.

use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::value::{Error, StrDeserializer, U32Deserializer};
use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

use crate::error::Report;
use crate::tree::{Node, NodeId, Table, Value};

/// Deserializes the tree into a struct of `raw.rs`. `shape.rs` has already compared the tree with the same schema, so
/// an error is not expected; one is reported like any other fault.
pub(crate) fn read<T: DeserializeOwned>(root: &Table, report: &mut Report) -> Option<T> {
    match T::deserialize(TableReader(root)) {
        Ok(raw) => Some(raw),
        Err(error) => {
            drop(report.whole(error.to_string()));
            None
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) id: NodeId,
    pub(crate) value: T,
}

pub(crate) type Key<T> = Option<At<T>>;

/// Tables under names that the file chooses, in the order of the file.
#[derive(Clone, Debug)]
pub(crate) struct Named<T>(pub(crate) Vec<(String, At<T>)>);

impl<T> Default for Named<T> {
    fn default() -> Self {
        Named(Vec::new())
    }
}

const AT: &str = "$config::At";

impl<'de, T: Deserialize<'de>> Deserialize<'de> for At<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Pair<T> {
            type Value = At<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value with its node")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Self::Value, A::Error> {
                let missing = || serde::de::Error::custom("a value without its node");
                let id = NodeId(pair.next_element()?.ok_or_else(missing)?);
                let value = pair.next_element()?.ok_or_else(missing)?;
                Ok(At { id, value })
            }
        }

        deserializer.deserialize_newtype_struct(AT, Pair(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Named<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Named(entries))
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for Named<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Named_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": "object", "additionalProperties": generator.subschema_for::<T>() })
    }
}

struct NodeReader<'a>(&'a Node);

impl<'de> Deserializer<'de> for NodeReader<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.0.value {
            Value::Text(text) | Value::Time(text) => visitor.visit_str(text),
            Value::Integer(integer) => visitor.visit_i64(*integer),
            Value::Float(float) => visitor.visit_f64(*float),
            Value::Switch(switch) => visitor.visit_bool(*switch),
            Value::List(list) => visitor.visit_seq(ListReader(list.iter())),
            Value::Table(table) => TableReader(table).deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name == AT {
            visitor.visit_seq(PairReader { id: Some(self.0.id), node: Some(self.0) })
        } else {
            visitor.visit_newtype_struct(self)
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}

struct TableReader<'a>(&'a Table);

impl<'de> Deserializer<'de> for TableReader<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(EntryReader { entries: self.0.entries.iter(), next: None })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier ignored_any option newtype_struct
    }
}

struct EntryReader<'a> {
    entries: std::slice::Iter<'a, (String, Node)>,
    next: Option<&'a Node>,
}

impl<'de> MapAccess<'de> for EntryReader<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some((key, node)) = self.entries.next() else {
            return Ok(None);
        };
        self.next = Some(node);
        let key: StrDeserializer<'_, Error> = key.as_str().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        match self.next.take() {
            Some(node) => seed.deserialize(NodeReader(node)),
            None => Err(serde::de::Error::custom("a value without a key")),
        }
    }
}

struct ListReader<'a>(std::slice::Iter<'a, Node>);

impl<'de> SeqAccess<'de> for ListReader<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.0.next().map(|node| seed.deserialize(NodeReader(node))).transpose()
    }
}

struct PairReader<'a> {
    id: Option<NodeId>,
    node: Option<&'a Node>,
}

impl<'de> SeqAccess<'de> for PairReader<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        if let Some(id) = self.id.take() {
            let id: U32Deserializer<Error> = id.0.into_deserializer();
            return seed.deserialize(id).map(Some);
        }
        self.node.take().map(|node| seed.deserialize(NodeReader(node))).transpose()
    }
}
