#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "bindings/bindings.h"
#include "measure/lines.h"
#include "measure/rates.h"
#include "measure/start_line.h"

namespace py = pybind11;

namespace symmoe::bindings {
namespace {

using measure::StartLine;
using measure::Store;

Store store_from(bool nontemporal) { return nontemporal ? Store::kNonTemporal : Store::kCached; }

int64_t time_read(StartLine& line, const std::vector<std::pair<uintptr_t, size_t>>& segments) {
  std::vector<measure::Segment> list;
  list.reserve(segments.size());
  for (const auto& [address, bytes] : segments)
    list.push_back({pointer<const void>(address), bytes});
  const py::gil_scoped_release release;
  return measure::time_read(line, list);
}

int64_t time_write(StartLine& line, uintptr_t address, size_t bytes, bool nontemporal) {
  const py::gil_scoped_release release;
  return measure::time_write(line, pointer<void>(address), bytes, store_from(nontemporal));
}

int64_t time_stream(StartLine& line, uintptr_t in, uintptr_t out, size_t out_bytes, size_t mix,
                    bool nontemporal) {
  const py::gil_scoped_release release;
  return measure::time_stream(line, pointer<const void>(in), pointer<void>(out), out_bytes, mix,
                              store_from(nontemporal));
}

int64_t time_gather(StartLine& line,
                    const std::vector<std::pair<std::vector<uintptr_t>, uintptr_t>>& targets,
                    size_t bytes, bool nontemporal) {
  std::vector<measure::Gather> list;
  list.reserve(targets.size());
  for (const auto& [sources, out] : targets) {
    measure::Gather& target = list.emplace_back();
    for (const uintptr_t source : sources) target.sources.push_back(pointer<const void>(source));
    target.out = pointer<void>(out);
  }
  const py::gil_scoped_release release;
  return measure::time_gather(line, list, bytes, store_from(nontemporal));
}

double time_barrier(StartLine& line, int rounds) {
  const py::gil_scoped_release release;
  return measure::time_barrier(line, rounds);
}

void rewrite(uintptr_t address, size_t bytes) {
  const py::gil_scoped_release release;
  measure::rewrite_lines(pointer<void>(address), bytes);
}

}  // namespace

void bind_measure(py::module_& module) {
  py::module_ part = module.def_submodule("measure", "Instruments of the benchmark.");
  part.attr("LINE_BYTES") = measure::kLineBytes;
  py::class_<StartLine>(part, "StartLine")
      .def(py::init<const std::string&, int, int, int64_t>(), py::arg("path"), py::arg("ranks"),
           py::arg("rank"), py::arg("deadline_ns"))
      .def_static("bytes_for", &StartLine::bytes_for, py::arg("ranks"))
      .def("start", &StartLine::start, py::call_guard<py::gil_scoped_release>());
  part.def("now_ns", &now_ns);
  part.def("rewrite", &rewrite, py::arg("address"), py::arg("nbytes"));
  part.def("time_read", &time_read, py::arg("line"), py::arg("segments"));
  part.def("time_write", &time_write, py::arg("line"), py::arg("address"), py::arg("nbytes"),
           py::arg("nontemporal"));
  part.def("time_stream", &time_stream, py::arg("line"), py::arg("source"), py::arg("target"),
           py::arg("target_bytes"), py::arg("mix"), py::arg("nontemporal"));
  part.def("time_gather", &time_gather, py::arg("line"), py::arg("targets"), py::arg("nbytes"),
           py::arg("nontemporal"));
  part.def("time_barrier", &time_barrier, py::arg("line"), py::arg("rounds"));
}

}  // namespace symmoe::bindings
