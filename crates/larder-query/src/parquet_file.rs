//! Parquet: an answer as a file that pandas, Polars and `DuckDB` read.

use std::fmt;
use std::io::Write;
use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError as Inner;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

use crate::answer::{Answer, Cell};

/// Why an answer cannot be written as Parquet; one sentence.
#[derive(Debug)]
pub struct ParquetError(String);

impl fmt::Display for ParquetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParquetError {}

impl From<Inner> for ParquetError {
    fn from(error: Inner) -> ParquetError {
        ParquetError(error.to_string())
    }
}

/// What all values of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Whole,
    Real,
    Text,
}

/// How many rows there are in a group: readers take a group at a time.
const GROUP: usize = 1 << 18;

/// Writes an answer. A column has whole numbers if all of it has, else numbers, else texts.
pub fn write_parquet(answer: &Answer, out: impl Write + Send) -> Result<(), ParquetError> {
    let kinds: Vec<Kind> = (0..answer.columns.len()).map(|at| kind_of(answer, at)).collect();
    for (at, name) in answer.columns.iter().enumerate() {
        if answer.columns[..at].contains(name) {
            return Err(ParquetError(format!(
                "two columns are called '{name}': name one of them with AS"
            )));
        }
    }
    let fields = answer.columns.iter().zip(&kinds).map(|(name, &kind)| field(name, kind));
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    let schema = Type::group_type_builder("answer").with_fields(fields).build()?;
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(out, Arc::new(schema), properties)?;
    for rows in answer.rows.chunks(GROUP) {
        let mut group = writer.next_row_group()?;
        for (at, &kind) in kinds.iter().enumerate() {
            let levels: Vec<i16> =
                rows.iter().map(|row| i16::from(row[at] != Cell::Empty)).collect();
            let cells = rows.iter().map(|row| &row[at]).filter(|cell| **cell != Cell::Empty);
            let Some(mut column) = group.next_column()? else { break };
            match kind {
                Kind::Whole => {
                    let values: Vec<i64> = cells.map(whole).collect();
                    column.typed::<Int64Type>().write_batch(&values, Some(&levels), None)?;
                }
                Kind::Real => {
                    let values: Vec<f64> = cells.map(real).collect();
                    column.typed::<DoubleType>().write_batch(&values, Some(&levels), None)?;
                }
                Kind::Text => {
                    let values: Vec<ByteArray> =
                        cells.map(|cell| cell.to_string().into_bytes().into()).collect();
                    column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?;
                }
            }
            column.close()?;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(())
}

fn kind_of(answer: &Answer, at: usize) -> Kind {
    let mut kind = Kind::Whole;
    for row in &answer.rows {
        match row[at] {
            Cell::Text(_) => return Kind::Text,
            Cell::Real(_) => kind = Kind::Real,
            Cell::Whole(_) | Cell::Empty => {}
        }
    }
    kind
}

fn field(name: &str, kind: Kind) -> Result<Arc<Type>, Inner> {
    let physical = match kind {
        Kind::Whole => Physical::INT64,
        Kind::Real => Physical::DOUBLE,
        Kind::Text => Physical::BYTE_ARRAY,
    };
    let field = Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
    let field = if kind == Kind::Text {
        field.with_logical_type(Some(LogicalType::String)).with_converted_type(ConvertedType::UTF8)
    } else {
        field
    };
    field.build().map(Arc::new)
}

fn whole(cell: &Cell) -> i64 {
    match cell {
        Cell::Whole(number) => *number,
        _ => 0,
    }
}

fn real(cell: &Cell) -> f64 {
    match cell {
        Cell::Real(number) => *number,
        Cell::Whole(number) => *number as f64,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let rows = vec![
            vec![Cell::Whole(1), Cell::Text("a".into()), Cell::Real(0.5)],
            vec![Cell::Empty, Cell::Empty, Cell::Whole(2)],
        ];
        let columns = ["one", "two", "three"].map(str::to_owned).to_vec();
        let mut file = Vec::new();
        write_parquet(&Answer { columns, rows }, &mut file).expect("it is written");
        let reader = SerializedFileReader::new(bytes::Bytes::from(file)).expect("Parquet");
        let read: Vec<Vec<(String, Field)>> = reader
            .get_row_iter(None)
            .expect("rows")
            .map(|row| row.expect("a row").into_columns())
            .collect();
        let field = |name: &str, field| (name.to_owned(), field);
        let first = [
            field("one", Field::Long(1)),
            field("two", Field::Str("a".into())),
            field("three", Field::Double(0.5)),
        ];
        assert_eq!(read[0], first);
        assert_eq!(read[1][0].1, Field::Null);
        assert_eq!(read[1][2].1, Field::Double(2.0));
    }

    #[test]
    fn two_columns_of_one_name_are_told() {
        let columns = vec!["one".to_owned(), "one".to_owned()];
        let why = write_parquet(&Answer { columns, rows: Vec::new() }, Vec::new());
        let why = why.expect_err("a reader could not tell them apart").to_string();
        assert_eq!(why, "two columns are called 'one': name one of them with AS");
    }
}
