//! What crosses the border to the driver, for comparison with CUDA's headers: sizes, places,
//! numbers, and the types of functions.

use std::mem::{align_of, offset_of, size_of};

use crate::{sys, table};

/// Something in CUDA's headers, as an expression in C++, and what it is here.
pub type Layout = (String, usize);

macro_rules! size {
    ($type:ident) => {
        (concat!("sizeof(", stringify!($type), ")").to_owned(), size_of::<sys::$type>())
    };
}

macro_rules! align {
    ($type:ident) => {
        (concat!("alignof(", stringify!($type), ")").to_owned(), align_of::<sys::$type>())
    };
}

macro_rules! offset {
    ($type:ident, $field:ident, $name:literal) => {
        (
            concat!("offsetof(", stringify!($type), ", ", $name, ")").to_owned(),
            offset_of!(sys::$type, $field),
        )
    };
}

/// Everything that this crate hands to the driver by its layout or by its number.
pub fn all() -> Vec<Layout> {
    [structs(), named(sys::numbers()), prototypes()].concat()
}

fn named(numbers: Vec<(&'static str, usize)>) -> Vec<Layout> {
    numbers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The types of the functions, as expressions that are 1 if the header declares them so.
fn prototypes() -> Vec<Layout> {
    let prototype = |(name, arguments): (&str, Vec<&str>)| {
        let arguments: Vec<String> = arguments.into_iter().map(in_c).collect();
        let arguments = arguments.join(", ");
        (format!("std::is_same_v<decltype(&{name}), CUresult (*)({arguments})>"), 1)
    };
    table::declared().into_iter().map(prototype).collect()
}

/// A type of Rust as C writes it.
fn in_c(rust: &str) -> String {
    if let Some(target) = rust.strip_prefix("*mut ") {
        return format!("{} *", in_c(target));
    }
    if let Some(target) = rust.strip_prefix("*const ") {
        return format!("{} const *", in_c(target));
    }
    let plain = match rust {
        "c_char" => "char",
        "c_int" => "int",
        "c_uchar" => "unsigned char",
        "c_uint" => "unsigned int",
        "c_ulonglong" => "unsigned long long",
        "c_void" => "void",
        "usize" => "size_t",
        named => named,
    };
    plain.to_owned()
}

fn structs() -> Vec<Layout> {
    vec![
        size!(CUipcMemHandle),
        size!(CUmemFabricHandle),
        size!(CUmemLocation),
        align!(CUmemLocation),
        offset!(CUmemLocation, type_, "type"),
        offset!(CUmemLocation, id, "id"),
        size!(CUmemAccessDesc),
        offset!(CUmemAccessDesc, location, "location"),
        offset!(CUmemAccessDesc, flags, "flags"),
        size!(CUmemAllocationProp),
        align!(CUmemAllocationProp),
        offset!(CUmemAllocationProp, type_, "type"),
        offset!(CUmemAllocationProp, requestedHandleTypes, "requestedHandleTypes"),
        offset!(CUmemAllocationProp, location, "location"),
        offset!(CUmemAllocationProp, win32HandleMetaData, "win32HandleMetaData"),
        offset!(CUmemAllocationProp, allocFlags, "allocFlags"),
        size!(CUgraphEdgeData),
        size!(CUmemGenericAllocationHandle),
        size!(CUdeviceptr),
        size!(CUdevice),
        size!(CUmemAllocationHandleType),
        size!(CUstreamCaptureStatus),
        size!(CUresult),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_written_as_c_writes_them() {
        assert_eq!(in_c("*mut *const c_char"), "char const * *");
        assert_eq!(in_c("CUresult"), "CUresult");
        let all = all();
        let init = "std::is_same_v<decltype(&cuInit), CUresult (*)(unsigned int)>";
        assert!(all.contains(&(init.to_owned(), 1)));
        assert!(all.contains(&("CUDA_ERROR_NOT_READY".to_owned(), 600)));
    }
}
