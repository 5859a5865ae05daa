//! Tree of a configuration's values before their conversion, with the source of each value.

use std::collections::HashSet;
use std::fmt::Write;
use std::ops::Range;

use crate::quote::quote;

/// Index of a value in [`Nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(pub(crate) u32);

/// A value with its index in [`Nodes`].
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) value: Value,
}

/// Types of TOML values.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Switch(bool),
    /// A date or time, which no key accepts.
    Time(String),
    List(Vec<Node>),
    Table(Table),
}

impl Value {
    /// Name of the type in the schema.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Text(_) => "string",
            Value::Integer(_) => "integer",
            Value::Float(_) => "number",
            Value::Switch(_) => "boolean",
            Value::Time(_) => "date",
            Value::List(_) => "array",
            Value::Table(_) => "object",
        }
    }
}

/// Keys and values in the order of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) entries: Vec<(String, Node)>,
}

impl Table {
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        self.entries.iter_mut().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    pub(crate) fn push(&mut self, key: impl Into<String>, node: Node) {
        self.entries.push((key.into(), node));
    }
}

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File,
    /// Text of the file with variables; contains the original text, such as `${HOST}:80`.
    Substituted(String),
    /// Name of an environment variable that replaced the value of the file.
    Environment(String),
    /// Flag of the command line.
    Flag(&'static str),
}

impl Origin {
    /// Names the source in faults; `None` for a value in the file.
    pub(crate) fn outside(&self) -> Option<String> {
        match self {
            Origin::Default | Origin::File | Origin::Substituted(_) => None,
            Origin::Environment(name) => Some(format!("environment {name}")),
            Origin::Flag(flag) => Some((*flag).to_owned()),
        }
    }
}

/// Source, place and state of each value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes {
    infos: Vec<Info>,
    /// Keys with refused values: faults that follow from them are not reported.
    broken: HashSet<(NodeId, String)>,
    /// Lists with refused entries.
    incomplete: HashSet<NodeId>,
}

#[derive(Clone, Debug)]
struct Info {
    parent: Option<NodeId>,
    step: Step,
    key: Option<Range<usize>>,
    value: Option<Range<usize>>,
    origin: Origin,
}

/// Step from a value to a value inside it.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Root,
    Key(String),
    /// Index from 0.
    Entry(usize),
}

/// Places of a key and its value in the text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans {
    pub(crate) key: Option<Range<usize>>,
    pub(crate) value: Option<Range<usize>>,
}

impl Nodes {
    pub(crate) fn add(&mut self, parent: Option<NodeId>, step: Step, spans: Spans, origin: Origin) -> NodeId {
        let id = NodeId(u32::try_from(self.infos.len()).unwrap_or(u32::MAX));
        self.infos.push(Info { parent, step, key: spans.key, value: spans.value, origin });
        id
    }

    /// Makes the root table, which all files share.
    pub(crate) fn root(&mut self) -> NodeId {
        if self.infos.is_empty() {
            return self.add(None, Step::Root, Spans::default(), Origin::File);
        }
        Self::ROOT
    }

    /// The root table, which is always the first node.
    pub(crate) const ROOT: NodeId = NodeId(0);

    pub(crate) fn origin(&self, id: NodeId) -> &Origin {
        &self.infos[id.0 as usize].origin
    }

    pub(crate) fn set_origin(&mut self, id: NodeId, origin: Origin) {
        self.infos[id.0 as usize].origin = origin;
    }

    /// Place of the value in the text, or of the nearest enclosing one.
    pub(crate) fn value_span(&self, id: NodeId) -> Option<Range<usize>> {
        let info = &self.infos[id.0 as usize];
        info.value.clone().or_else(|| self.key_span(id))
    }

    /// Place of the key in the text; for an entry of a list of tables, the key of the list.
    pub(crate) fn key_span(&self, id: NodeId) -> Option<Range<usize>> {
        let info = &self.infos[id.0 as usize];
        info.key.clone().or_else(|| info.value.clone())
    }

    pub(crate) fn step(&self, id: NodeId) -> &Step {
        &self.infos[id.0 as usize].step
    }

    pub(crate) fn parent(&self, id: NodeId) -> Option<NodeId> {
        self.infos[id.0 as usize].parent
    }

    /// Path such as `listener.web.bind[2]`: entries of lists are counted from 1.
    pub(crate) fn path(&self, id: NodeId) -> String {
        let mut steps = Vec::new();
        let mut next = Some(id);
        while let Some(info) = next.map(|id| &self.infos[id.0 as usize]) {
            steps.push(&info.step);
            next = info.parent;
        }
        let mut path = String::new();
        for step in steps.into_iter().rev() {
            match step {
                Step::Root => {}
                Step::Key(key) => {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    if is_bare(key) {
                        path.push_str(key);
                    } else {
                        path.push_str(&quote(key));
                    }
                }
                Step::Entry(at) => {
                    let _ = write!(path, "[{}]", at + 1);
                }
            }
        }
        path
    }

    pub(crate) fn mark_broken(&mut self, table: NodeId, key: &str) {
        self.broken.insert((table, key.to_owned()));
    }

    pub(crate) fn is_broken(&self, table: NodeId, key: &str) -> bool {
        self.broken.contains(&(table, key.to_owned()))
    }

    /// The keys of one table are taken into another.
    pub(crate) fn move_broken(&mut self, from: NodeId, to: NodeId) {
        let keys: Vec<_> = self.broken.extract_if(|(table, _)| *table == from).map(|(_, key)| key).collect();
        self.broken.extend(keys.into_iter().map(|key| (to, key)));
    }

    pub(crate) fn mark_incomplete(&mut self, list: NodeId) {
        self.incomplete.insert(list);
    }

    /// Reports whether entries of the list were refused, so that statements about the whole list would be wrong.
    pub(crate) fn is_incomplete(&self, list: NodeId) -> bool {
        self.incomplete.contains(&list)
    }

    /// Quotes a text value for a fault; hides a value from the environment.
    pub(crate) fn show(&self, id: NodeId, text: &str) -> String {
        match self.origin(id) {
            Origin::Default | Origin::File | Origin::Flag(_) => quote(text),
            Origin::Substituted(written) => quote(written),
            Origin::Environment(name) => format!("the value of {name}"),
        }
    }

    /// Reports whether a fault may repeat the value.
    pub(crate) fn may_be_shown(&self, id: NodeId) -> bool {
        !matches!(self.origin(id), Origin::Substituted(_) | Origin::Environment(_))
    }
}

/// Reports whether a key needs no quotes in TOML and is short enough to read.
pub(crate) fn is_bare(key: &str) -> bool {
    !key.is_empty()
        && key.len() <= 80
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}
