//! How vectors are written: as JSON numbers, as base64, or as bytes.
//!
//! An element type is described by its numbers of exponent and mantissa bits, so that one rounding serves all of them.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::error::{ApiError, quoted};
use crate::request::Fields;

/// Element type of base64 and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbedDtype {
    name: &'static str,
    exponent: u32,
    mantissa: u32,
    /// The largest exponent stands for infinity and NaN; if not, only the largest mantissa there is NaN.
    has_infinity: bool,
}

const DTYPES: [EmbedDtype; 5] = [
    EmbedDtype { name: "float32", exponent: 8, mantissa: 23, has_infinity: true },
    EmbedDtype { name: "float16", exponent: 5, mantissa: 10, has_infinity: true },
    EmbedDtype { name: "bfloat16", exponent: 8, mantissa: 7, has_infinity: true },
    EmbedDtype { name: "fp8_e4m3", exponent: 4, mantissa: 3, has_infinity: false },
    EmbedDtype { name: "fp8_e5m2", exponent: 5, mantissa: 2, has_infinity: true },
];

impl EmbedDtype {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        (1 + self.exponent as usize + self.mantissa as usize) / 8
    }

    /// The bits of the nearest number of this type; of two equally near ones that with the even mantissa.
    fn round(self, value: f32) -> u32 {
        let sign = (value.to_bits() >> 31) << (self.exponent + self.mantissa);
        let magnitude = f64::from(value.abs());
        let infinity = ((1 << self.exponent) - 1) << self.mantissa;
        if value.is_nan() {
            return sign | infinity | ((1 << self.mantissa) - 1);
        }
        let bias = (1_i32 << (self.exponent - 1)) - 1;
        // The exponent of the last mantissa bit: fixed below the least normal number.
        let exponent = if magnitude > 0.0 { exponent_of(magnitude) } else { -bias }.max(1 - bias);
        let unit = 2_f64.powi(exponent - self.mantissa as i32);
        // Both are exact: a single-precision number over a power of two. So this is the one rounding.
        let steps = (magnitude / unit).round_ties_even() as u64;
        // Steps count on from number to number, over the borders of exponents as well.
        let bits = steps.saturating_add((i64::from(exponent + bias - 1) as u64) << self.mantissa);
        let most = u64::from(if self.has_infinity { infinity } else { infinity + (1 << self.mantissa) - 1 });
        sign | bits.min(most) as u32
    }
}

/// The exponent of a positive number's leading bit.
fn exponent_of(value: f64) -> i32 {
    // Every single-precision number is normal in double precision.
    ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON numbers, always in single precision.
    Float,
    /// A JSON string per vector.
    Base64,
    /// The vectors one after the other, and where each is in the header `metadata`.
    Bytes,
    /// The vectors one after the other.
    BytesOnly,
}

/// What the model made of one text: a vector, or one of each token.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Row after row.
    pub values: Vec<f32>,
    /// Numbers of a row; `None` if there is one vector, which is no list of rows.
    pub width: Option<usize>,
}

impl Matrix {
    fn shape(&self) -> Vec<usize> {
        match self.width {
            Some(width) => vec![self.values.len() / width.max(1), width],
            None => vec![self.values.len()],
        }
    }
}

/// `encoding_format`, `embed_dtype` and `endianness`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// How the answer is written.
    pub format: Format,
    dtype: EmbedDtype,
    big_endian: bool,
}

impl Encoding {
    /// The encoding of an answer that says nothing else.
    pub const fn of(format: Format) -> Self {
        Self { format, dtype: DTYPES[0], big_endian: false }
    }

    /// Reads the three fields.
    pub fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let format = fields.string("encoding_format")?;
        let format = match format.as_deref() {
            None | Some("float") => Format::Float,
            Some("base64") => Format::Base64,
            Some("bytes") => Format::Bytes,
            Some("bytes_only") => Format::BytesOnly,
            Some(other) => {
                return Err(unknown("encoding_format", "float, base64, bytes or bytes_only", other));
            }
        };
        let dtype = fields.string("embed_dtype")?.unwrap_or_else(|| DTYPES[0].name.to_owned());
        let dtype = DTYPES.into_iter().find(|known| known.name == dtype).ok_or_else(|| {
            unknown("embed_dtype", "float32, float16, bfloat16, fp8_e4m3 or fp8_e5m2", &dtype)
        })?;
        let endianness = fields.string("endianness")?;
        let big_endian = match endianness.as_deref() {
            // What a client means by a host it does not know is anybody's guess; all hosts of today are little-endian.
            None | Some("little") => false,
            Some("native") => cfg!(target_endian = "big"),
            Some("big") => true,
            Some(other) => return Err(unknown("endianness", "native, big or little", other)),
        };
        Ok(Self { format, dtype, big_endian })
    }

    /// The bytes of a vector.
    pub fn append(&self, vector: &[f32], out: &mut Vec<u8>) {
        let size = self.dtype.size();
        out.reserve(vector.len() * size);
        for value in vector {
            let bits = self.dtype.round(*value);
            if self.big_endian {
                out.extend_from_slice(&bits.to_be_bytes()[4 - size..]);
            } else {
                out.extend_from_slice(&bits.to_le_bytes()[..size]);
            }
        }
    }

    /// A vector, or the rows of a matrix one after the other, in base64.
    pub fn base64(&self, vector: &[f32]) -> String {
        let mut bytes = Vec::new();
        self.append(vector, &mut bytes);
        BASE64_STANDARD.encode(bytes)
    }

    /// All vectors as bytes, and what the header says of each.
    pub fn bytes(&self, vectors: &[Matrix]) -> (Vec<u8>, Vec<Value>) {
        let mut out = Vec::new();
        let mut places = Vec::with_capacity(vectors.len());
        let endianness = if self.big_endian { "big" } else { "little" };
        for (index, vector) in vectors.iter().enumerate() {
            let start = out.len();
            self.append(&vector.values, &mut out);
            places.push(json!({
                "index": index,
                "embed_dtype": self.dtype.name,
                "endianness": endianness,
                "start": start,
                "end": out.len(),
                "shape": vector.shape(),
            }));
        }
        (out, places)
    }
}

impl Default for Encoding {
    fn default() -> Self {
        Self::of(Format::Float)
    }
}

fn unknown(field: &'static str, wanted: &str, got: &str) -> ApiError {
    ApiError::invalid(field, format!("{field} must be {wanted}, got {}", quoted(got, 32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dtype(name: &str) -> EmbedDtype {
        DTYPES.into_iter().find(|dtype| dtype.name == name).unwrap()
    }

    #[test]
    fn single_precision_is_kept_bit_by_bit() {
        for value in [0.0, -0.0, 1.5, f32::MIN_POSITIVE, 1e-45, f32::MAX, -0.1, f32::INFINITY] {
            assert_eq!(dtype("float32").round(value), value.to_bits(), "{value}");
        }
    }

    #[test]
    fn every_number_of_a_type_is_itself() {
        for name in ["float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] {
            let dtype = dtype(name);
            let (exponent, mantissa) = (dtype.exponent, dtype.mantissa);
            let bias = (1 << (exponent - 1)) - 1;
            let finite = ((1_u32 << exponent) - u32::from(dtype.has_infinity)) << mantissa;
            for bits in 0..finite - u32::from(!dtype.has_infinity) {
                let (high, low) = ((bits >> mantissa) as i32, f64::from(bits & ((1 << mantissa) - 1)));
                let fraction = low / f64::from(1 << mantissa);
                let value = if high == 0 {
                    fraction * 2_f64.powi(1 - bias)
                } else {
                    (1.0 + fraction) * 2_f64.powi(high - bias)
                };
                assert_eq!(dtype.round(value as f32), bits, "{name} {value}");
                assert_eq!(dtype.round(-value as f32), bits | 1 << (exponent + mantissa), "{name} -{value}");
            }
        }
    }

    #[test]
    fn ties_go_to_the_even_mantissa_and_overflow_to_the_end() {
        // 1 + 1/16 lies between 1 and 1 + 1/8; 1 + 3/16 between 1 + 1/8 and 1 + 2/8.
        assert_eq!(dtype("fp8_e4m3").round(1.0625), 0x38);
        assert_eq!(dtype("fp8_e4m3").round(1.1875), 0x3a);
        assert_eq!(dtype("fp8_e4m3").round(448.0), 0x7e);
        assert_eq!(dtype("fp8_e4m3").round(1e9), 0x7f);
        assert_eq!(dtype("fp8_e5m2").round(1e9), 0x7c);
        assert_eq!(dtype("float16").round(65520.0), 0x7c00);
        assert_eq!(dtype("bfloat16").round(f32::NAN), 0x7fff);
        assert_eq!(dtype("float16").round(2_f32.powi(-25)), 0);
        assert_eq!(dtype("float16").round(1.1 * 2_f32.powi(-25)), 1);
    }

    #[test]
    fn bytes_have_the_order_that_was_asked_for() {
        let encode = |text: &str| {
            let mut fields = Fields::parse_untabled(text.as_bytes()).unwrap();
            let mut out = Vec::new();
            Encoding::read(&mut fields).unwrap().append(&[1.0], &mut out);
            out
        };
        assert_eq!(encode("{}"), [0, 0, 0x80, 0x3f]);
        assert_eq!(encode(r#"{"endianness": "native"}"#), 1_f32.to_ne_bytes());
        assert_eq!(encode(r#"{"endianness": "big"}"#), [0x3f, 0x80, 0, 0]);
        assert_eq!(encode(r#"{"embed_dtype": "bfloat16", "endianness": "big"}"#), [0x3f, 0x80]);
        assert_eq!(encode(r#"{"embed_dtype": "float16"}"#), [0, 0x3c]);
        assert_eq!(encode(r#"{"embed_dtype": "fp8_e5m2"}"#), [0x3c]);
    }
}
