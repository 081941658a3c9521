//! GGUF metadata (versions 2 and 3, little-endian): keys, values and tensor descriptions, never tensor data.
//!
//! The file is not trusted. Three invariants hold for any bytes:
//!
//! * a length is compared with what is left of the file before anything is reserved for it, so memory stays within a
//!   small multiple of the file's size;
//! * sums and products of file values are checked, so a wrapped offset is an error and not a read elsewhere;
//! * every tensor that [`Gguf`] lists lies inside the file if its type is known, so a truncated download fails here.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::LoadError;

const MAGIC: [u8; 4] = *b"GGUF";
/// Longer strings do not occur: the largest are chat templates and licences.
const MAX_STRING: u64 = 1 << 24;
/// The largest vocabularies have well under a million tokens.
const MAX_ITEMS: u64 = 1 << 24;
/// Arrays of arrays of arrays do not occur; the limit keeps a hostile file from exhausting the stack.
const MAX_NESTING: usize = 4;
const MAX_DIMS: u32 = 8;
const DEFAULT_ALIGNMENT: u64 = 32;

/// A metadata value. Integers keep their sign and lose their width.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `uint8` to `uint64`.
    Uint(u64),
    /// `int8` to `int64`.
    Int(i64),
    /// `float32`, widened, or `float64`.
    Float(f64),
    /// `bool`.
    Bool(bool),
    /// A UTF-8 string.
    String(String),
    /// A homogeneous array.
    Array(Array),
}

/// A homogeneous array.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Integers of any width that fit `i64` (a `uint64` above that is an error).
    Ints(Vec<i64>),
    /// `float32`, widened, or `float64`.
    Floats(Vec<f64>),
    /// Booleans.
    Bools(Vec<bool>),
    /// UTF-8 strings.
    Strings(Vec<String>),
    /// Arrays.
    Arrays(Vec<Array>),
}

/// Where a tensor lies in the file and how it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file's own naming scheme.
    pub name: String,
    /// Dimensions as stored: the first varies fastest (the reverse of torch's order).
    pub shape: Vec<u64>,
    /// The `ggml_type` number.
    pub ggml_type: u32,
    /// Position of the first byte, in bytes from the start of the file.
    pub offset: u64,
    /// Size of the data in bytes; `None` for a type this reader does not know.
    pub bytes: Option<u64>,
}

/// The header of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf {
    /// 2 or 3.
    pub version: u32,
    /// All key-value pairs.
    pub metadata: HashMap<String, Value>,
    /// All tensors, in file order.
    pub tensors: Vec<TensorInfo>,
}

impl Gguf {
    /// Reads the header of the file at `path`.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let file = File::open(path).map_err(|e| LoadError::io(path, e))?;
        let size = file.metadata().map_err(|e| LoadError::io(path, e))?.len();
        Self::read(BufReader::with_capacity(1 << 16, file), size).map_err(|fault| match fault {
            Fault::Io(e) => LoadError::io(path, e),
            Fault::Corrupt(reason) => LoadError::format(path, reason),
        })
    }

    /// Reads a header from `source`, which holds `size` bytes in all.
    fn read(source: impl Read, size: u64) -> Parse<Self> {
        let mut reader = Reader { source, size, pos: 0 };
        if reader.bytes::<4>("magic")? != MAGIC {
            return corrupt("it does not start with \"GGUF\"");
        }
        let version = reader.u32("version")?;
        if (1..=3).contains(&version.swap_bytes()) {
            return corrupt("it is a big-endian GGUF, only little-endian files are supported");
        }
        if !(2..=3).contains(&version) {
            return corrupt(format!("GGUF version {version} is not supported, only 2 and 3 are"));
        }
        let tensor_count = reader.u64("tensor count")?;
        let pair_count = reader.u64("metadata count")?;
        let metadata = reader.metadata(pair_count)?;
        let alignment = match metadata.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(Value::Uint(n)) if n.is_power_of_two() && *n <= 1 << 20 => *n,
            Some(other) => {
                return corrupt(format!(
                    "general.alignment must be a power of two up to 2^20, got {other:?}"
                ));
            }
        };
        let mut tensors = reader.tensors(tensor_count)?;
        let data_start = reader.pos.next_multiple_of(alignment);
        for tensor in &mut tensors {
            place(tensor, data_start, alignment, size)?;
        }
        Ok(Self { version, metadata, tensors })
    }

    /// The string at `key`, if there is one.
    pub fn string(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key)? {
            Value::String(s) => Some(s),
            _ => None,
        }
    }

    /// The non-negative integer at `key`, if there is one.
    pub fn uint(&self, key: &str) -> Option<u64> {
        match self.metadata.get(key)? {
            Value::Uint(n) => Some(*n),
            Value::Int(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    /// The boolean at `key`, if there is one.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.metadata.get(key)? {
            Value::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// The array at `key`, if there is one.
    pub fn array(&self, key: &str) -> Option<&Array> {
        match self.metadata.get(key)? {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }
}

/// Turns the stored, relative offset into an absolute one and checks that the data is inside the file.
fn place(tensor: &mut TensorInfo, data_start: u64, alignment: u64, size: u64) -> Parse<()> {
    let name = &tensor.name;
    if !tensor.offset.is_multiple_of(alignment) {
        return corrupt(format!(
            "tensor {name} is at offset {}, which is not a multiple of {alignment}",
            tensor.offset
        ));
    }
    let elements = tensor.shape.iter().try_fold(1u64, |n, dim| n.checked_mul(*dim));
    let Some(elements) = elements else {
        return corrupt(format!("tensor {name} has more than 2^64 elements: shape {:?}", tensor.shape));
    };
    if let Some((block, block_bytes)) = block_layout(tensor.ggml_type) {
        let row = tensor.shape.first().copied().unwrap_or(1);
        if !row.is_multiple_of(block) {
            return corrupt(format!("tensor {name} has rows of {row} elements, not a multiple of {block}"));
        }
        // A product that wraps is larger than any file, and so is its saturated value.
        tensor.bytes = Some((elements / block).saturating_mul(block_bytes));
    }
    let start = data_start.checked_add(tensor.offset);
    let end = start.and_then(|start| start.checked_add(tensor.bytes.unwrap_or(0)));
    match (start, end) {
        (Some(start), Some(end)) if end <= size => {
            tensor.offset = start;
            Ok(())
        }
        _ => corrupt(format!("tensor {name} does not end within the file of {size} bytes: it is truncated")),
    }
}

/// Elements and bytes of one block of a `ggml_type`.
fn block_layout(ggml_type: u32) -> Option<(u64, u64)> {
    Some(match ggml_type {
        0 | 26 => (1, 4),      // F32, I32
        1 | 25 | 30 => (1, 2), // F16, I16, BF16
        24 => (1, 1),          // I8
        27 | 28 => (1, 8),     // I64, F64
        2 | 20 => (32, 18),    // Q4_0, IQ4_NL
        3 => (32, 20),         // Q4_1
        6 => (32, 22),         // Q5_0
        7 => (32, 24),         // Q5_1
        8 => (32, 34),         // Q8_0
        10 => (256, 84),       // Q2_K
        11 | 21 => (256, 110), // Q3_K, IQ3_S
        12 => (256, 144),      // Q4_K
        13 => (256, 176),      // Q5_K
        14 => (256, 210),      // Q6_K
        16 | 35 => (256, 66),  // IQ2_XXS, TQ2_0
        17 => (256, 74),       // IQ2_XS
        18 => (256, 98),       // IQ3_XXS
        19 => (256, 50),       // IQ1_S
        22 => (256, 82),       // IQ2_S
        23 => (256, 136),      // IQ4_XS
        29 => (256, 56),       // IQ1_M
        34 => (256, 54),       // TQ1_0
        39 => (32, 17),        // MXFP4
        40 => (64, 36),        // NVFP4
        _ => return None,
    })
}

enum Fault {
    Io(std::io::Error),
    Corrupt(String),
}

type Parse<T> = Result<T, Fault>;

fn corrupt<T>(reason: impl Into<String>) -> Parse<T> {
    Err(Fault::Corrupt(reason.into()))
}

struct Reader<R> {
    source: R,
    size: u64,
    pos: u64,
}

impl<R: Read> Reader<R> {
    /// Books `count` items of at least `item_bytes` each, or says that the file is too short for them.
    fn claim(&self, what: &str, count: u64, item_bytes: u64) -> Parse<usize> {
        let left = self.size - self.pos;
        if count > left / item_bytes {
            return corrupt(format!(
                "{what} claims {count} items at byte {}, but only {left} bytes are left: the file is truncated or corrupt",
                self.pos
            ));
        }
        usize::try_from(count).or_else(|_| corrupt(format!("{what} claims {count} items")))
    }

    fn bytes<const N: usize>(&mut self, what: &str) -> Parse<[u8; N]> {
        self.claim(what, N as u64, 1)?;
        let mut buffer = [0; N];
        self.source.read_exact(&mut buffer).map_err(Fault::Io)?;
        self.pos += N as u64;
        Ok(buffer)
    }

    fn u32(&mut self, what: &str) -> Parse<u32> {
        self.bytes(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Parse<u64> {
        self.bytes(what).map(u64::from_le_bytes)
    }

    fn string(&mut self, what: &str) -> Parse<String> {
        let len = self.u64(what)?;
        if len > MAX_STRING {
            return corrupt(format!("{what} claims a string of {len} bytes, over the limit of {MAX_STRING}"));
        }
        let mut buffer = vec![0; self.claim(what, len, 1)?];
        self.source.read_exact(&mut buffer).map_err(Fault::Io)?;
        self.pos += len;
        String::from_utf8(buffer).or_else(|_| corrupt(format!("{what} is not UTF-8")))
    }

    fn metadata(&mut self, count: u64) -> Parse<HashMap<String, Value>> {
        // A pair takes at least an empty key (8), a type (4) and one byte.
        let count = self.claim("metadata", count, 13)?;
        let mut metadata = HashMap::new();
        for _ in 0..count {
            let key = self.string("a metadata key")?;
            let kind = self.u32(&key)?;
            let value = self.value(&key, kind)?;
            if metadata.contains_key(&key) {
                return corrupt(format!("the metadata key {key} occurs twice"));
            }
            metadata.insert(key, value);
        }
        Ok(metadata)
    }

    fn value(&mut self, key: &str, kind: u32) -> Parse<Value> {
        Ok(match kind {
            8 => Value::String(self.string(key)?),
            9 => Value::Array(self.array(key, 0)?),
            _ => self.scalar(key, kind)?,
        })
    }

    fn scalar(&mut self, key: &str, kind: u32) -> Parse<Value> {
        Ok(match kind {
            0 => Value::Uint(self.bytes::<1>(key)?[0].into()),
            1 => Value::Int(i8::from_le_bytes(self.bytes(key)?).into()),
            2 => Value::Uint(u16::from_le_bytes(self.bytes(key)?).into()),
            3 => Value::Int(i16::from_le_bytes(self.bytes(key)?).into()),
            4 => Value::Uint(self.u32(key)?.into()),
            5 => Value::Int(i32::from_le_bytes(self.bytes(key)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.bytes(key)?).into()),
            7 => Value::Bool(self.bytes::<1>(key)?[0] != 0),
            10 => Value::Uint(self.u64(key)?),
            11 => Value::Int(i64::from_le_bytes(self.bytes(key)?)),
            12 => Value::Float(f64::from_le_bytes(self.bytes(key)?)),
            other => return corrupt(format!("{key} has the unknown value type {other}")),
        })
    }

    fn array(&mut self, key: &str, depth: usize) -> Parse<Array> {
        if depth == MAX_NESTING {
            return corrupt(format!("{key} nests arrays deeper than {MAX_NESTING}"));
        }
        let kind = self.u32(key)?;
        let count = self.u64(key)?;
        let smallest = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 12,
            other => return corrupt(format!("{key} is an array of the unknown value type {other}")),
        };
        if count > MAX_ITEMS {
            return corrupt(format!("{key} claims {count} items, over the limit of {MAX_ITEMS}"));
        }
        let count = self.claim(key, count, smallest)?;
        // Vectors grow as items arrive: an item may be larger in memory than in the file.
        Ok(match kind {
            6 | 12 => Array::Floats((0..count).map(|_| self.float(key, kind)).collect::<Parse<_>>()?),
            7 => Array::Bools((0..count).map(|_| Ok(self.bytes::<1>(key)?[0] != 0)).collect::<Parse<_>>()?),
            8 => Array::Strings((0..count).map(|_| self.string(key)).collect::<Parse<_>>()?),
            9 => Array::Arrays((0..count).map(|_| self.array(key, depth + 1)).collect::<Parse<_>>()?),
            _ => Array::Ints((0..count).map(|_| self.int(key, kind)).collect::<Parse<_>>()?),
        })
    }

    fn int(&mut self, key: &str, kind: u32) -> Parse<i64> {
        match self.scalar(key, kind)? {
            Value::Int(n) => Ok(n),
            Value::Uint(n) => {
                i64::try_from(n).or_else(|_| corrupt(format!("{key} holds {n}, over 2^63 - 1")))
            }
            _ => corrupt(format!("{key} is not an array of integers")),
        }
    }

    fn float(&mut self, key: &str, kind: u32) -> Parse<f64> {
        match self.scalar(key, kind)? {
            Value::Float(x) => Ok(x),
            _ => corrupt(format!("{key} is not an array of floats")),
        }
    }

    fn tensors(&mut self, count: u64) -> Parse<Vec<TensorInfo>> {
        // A description takes at least an empty name (8), a dimension count (4), a type (4) and an offset (8).
        let count = self.claim("the tensor list", count, 24)?;
        let mut names = std::collections::HashSet::new();
        let mut tensors = Vec::new();
        for _ in 0..count {
            let name = self.string("a tensor name")?;
            let dims = self.u32(&name)?;
            if dims > MAX_DIMS {
                return corrupt(format!("tensor {name} has {dims} dimensions, over the limit of {MAX_DIMS}"));
            }
            let shape = (0..dims).map(|_| self.u64(&name)).collect::<Parse<Vec<_>>>()?;
            let ggml_type = self.u32(&name)?;
            let offset = self.u64(&name)?;
            if !names.insert(name.clone()) {
                return corrupt(format!("the tensor {name} occurs twice"));
            }
            tensors.push(TensorInfo { name, shape, ggml_type, offset, bytes: None });
        }
        Ok(tensors)
    }
}
