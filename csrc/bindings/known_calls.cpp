#include "bindings/known_calls.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "bindings/bindings.h"

namespace py = pybind11;

namespace symmoe::bindings {
namespace {

// Of each kind of call. A model's layers share a form; a step with other sizes brings another.
constexpr size_t kMostCalls = 64;

MemoryRange range_of(const TensorFacts& facts) {
  return {static_cast<const std::byte*>(facts.data), facts.bytes};
}

// Whether `out` may be where it is beside a call's input: apart from it or, where rows are
// gathered, around exactly the own ones, which are in their place already.
bool may_write(const Plan& plan, MemoryRange in, MemoryRange out) {
  return is_apart(in, out) || (plan.kind == Plan::Kind::kAllGather &&
                               in.begin == out.begin + plan.bytes_of(plan.own_begin()) &&
                               in.bytes == plan.input_bytes());
}

// The masks of a call whose plan is of routed ones; of others there are none.
class RoutingOfCall {
 public:
  RoutingOfCall(const Plan& plan, const TensorFacts& ids, const TensorFacts& experts) {
    if (!plan.routed) return;
    const kernels::SlotRouting slots{.ids = ids.data,
                                     .expert_to_rank = experts.data,
                                     .slots = ids.shape[1],
                                     .experts = experts.shape[0],
                                     .world = static_cast<int>(plan.counts.size()),
                                     .ids_are_64bit = ids.type.bits == 64};
    try {
      const py::gil_scoped_release release;
      routing_.emplace(plan.rows, plan.begins, plan.counts, slots);
    } catch (const InvalidArgument&) {
      is_wrong_ = true;  // the long way says how
    }
  }
  bool is_wrong() const { return is_wrong_; }
  const Routing* get() const { return routing_ ? &*routing_ : nullptr; }

 private:
  std::optional<Routing> routing_;
  bool is_wrong_ = false;
};

int threads_of(const KnownCalls::Arguments& given) {
  return std::min(py::handle(given.threads).cast<int>(), py::handle(given.cores).cast<int>());
}

PyObject* answer(PyObject* object) {
  Py_INCREF(object);
  return object;
}

}  // namespace

KnownCalls::KnownCalls(py::object group, py::type routing_type, const EpilogueReader::Types& types)
    : group_(std::move(group)),
      handle_(group_.cast<const GroupHandle*>()),
      reader_(types.tensor),
      epilogues_(types),
      routing_type_(std::move(routing_type)),
      ids_name_("topk_ids"),
      experts_name_("expert_to_rank"),
      weights_name_("topk_weights") {}

void KnownCalls::remember(const Form& form, const std::shared_ptr<const Plan>& plan) {
  keep(rows_of(plan->kind), form, plan, {});
}

void KnownCalls::remember_combine(const Form& form, const std::shared_ptr<const Plan>& plan,
                                  const kernels::TopkReduceArgs& sum) {
  keep(combines_, form, plan, sum);
}

void KnownCalls::forget() {
  for (Calls& calls : rows_) calls.clear();
  combines_.clear();
}

std::optional<AcquiredWindow> KnownCalls::acquired(std::shared_ptr<Buffer> buffer,
                                                   py::object tensor) const {
  TensorFacts facts;
  if (!reader_.can_read() || !reader_.read(tensor.ptr(), &facts)) {
    return std::nullopt;
  }
  const auto form = KnownTensor::like(facts);
  if (!form) return std::nullopt;
  return AcquiredWindow{std::move(buffer), std::move(tensor), *form, facts.data};
}

void KnownCalls::keep(Calls& calls, const Form& form, const std::shared_ptr<const Plan>& plan,
                      const kernels::TopkReduceArgs& sum) {
  if (!reader_.can_read()) return;
  Tensors tensors;
  if (!read_routing(form.routing.ptr(), &tensors) ||
      !epilogues_.read(form.epilogue.ptr(), &tensors.epilogue)) {
    return;
  }
  KnownCall made;
  TensorFacts output;
  if (!reader_.read(form.output.ptr(), &output)) return;
  made.output_type = output.type;
  if (form.steps != nullptr) {
    auto epilogue = KnownEpilogue::like(tensors.epilogue, *form.steps);
    if (!epilogue) return;
    made.epilogue = std::move(*epilogue);
  }
  made.plan = plan;
  made.sum = sum;
  made.new_output = form.new_output;
  for (const auto& [object, facts] : {std::pair{&form.input, &tensors.input},
                                      {&form.weights, &tensors.weights},
                                      {&form.index, &tensors.index}}) {
    if (object->ptr() != Py_None && !reader_.read(object->ptr(), facts)) return;
  }
  for (const auto& [known, facts] : {std::pair{&made.input, &tensors.input},
                                     {&made.weights, &tensors.weights},
                                     {&made.index, &tensors.index},
                                     {&made.ids, &tensors.ids},
                                     {&made.experts, &tensors.experts}}) {
    const auto like = KnownTensor::like(*facts);
    if (!like) return;
    *known = *like;
  }
  auto sizes = KnownIntegers::like(form.sizes.ptr());
  auto padded_to = KnownIntegers::like(form.padded_to.ptr());
  if (!sizes || !padded_to) return;
  made.sizes = std::move(*sizes);
  made.padded_to = std::move(*padded_to);
  // A call that is known may go the long way all the same, time and again.
  if (std::any_of(calls.begin(), calls.end(), [&](const auto& call) {
        return call->plan == plan && call->input == made.input && call->weights == made.weights &&
               call->index == made.index && call->ids == made.ids &&
               call->experts == made.experts && call->epilogue == made.epilogue;
      })) {
    return;
  }
  if (calls.size() >= kMostCalls) calls.pop_back();
  calls.insert(calls.begin(), std::make_shared<KnownCall>(std::move(made)));
}

std::shared_ptr<const KnownCall> KnownCalls::find(Calls& calls, const Arguments& given,
                                                  const Tensors& tensors) {
  const auto found = std::find_if(calls.begin(), calls.end(), [&](const auto& call) {
    return call->input.equal(tensors.input) && call->weights.equal(tensors.weights) &&
           call->index.equal(tensors.index) && call->ids.equal(tensors.ids) &&
           call->experts.equal(tensors.experts) && is_int(given.lane, call->plan->lane) &&
           call->sizes.equal(given.sizes) && call->padded_to.equal(given.padded_to) &&
           call->epilogue.equal(tensors.epilogue);
  });
  if (found == calls.end()) return nullptr;
  std::rotate(calls.begin(), found, found + 1);
  return calls.front();
}

bool KnownCalls::read_routing(PyObject* routing, Tensors* tensors) const {
  if (routing == Py_None) return true;
  if (!Py_IS_TYPE(routing, reinterpret_cast<PyTypeObject*>(routing_type_.ptr()))) return false;
  // The routing cannot be changed and keeps them.
  const py::handle given = routing;
  return reader_.read_result(py::object(given.attr(ids_name_)).ptr(), &tensors->ids) &&
         reader_.read_result(py::object(given.attr(experts_name_)).ptr(), &tensors->experts);
}

py::object KnownCalls::output_for(const KnownCall& call, PyObject* out, MemoryRange* target) const {
  const Plan& plan = *call.plan;
  TensorFacts facts;
  py::object output = out == Py_None ? call.new_output() : py::reinterpret_borrow<py::object>(out);
  if (!reader_.read_result(output.ptr(), &facts)) return {};
  *target = {static_cast<const std::byte*>(facts.data),
             plan.output_bytes() / size_of(plan.dtype) * call.output_type.bits / 8};
  const bool fits = facts.type == call.output_type && facts.dims == 2 &&
                    facts.shape[1] == plan.hidden && facts.bytes >= target->bytes;
  return fits ? output : py::object();
}

PyObject* KnownCalls::acquire_again(const AcquiredWindow& window) const {
  if (!handle_->call([&](Engine& engine) { return engine.rearm(*window.buffer); })) {
    return answer(Py_None);
  }
  TensorFacts facts;
  const bool intact = reader_.read(window.tensor.ptr(), &facts) && facts.data == window.data &&
                      window.form.equal(facts) && !reader_.wants_gradient(window.tensor.ptr());
  return answer(intact ? window.tensor.ptr() : Py_None);
}

PyObject* KnownCalls::run_rows(Plan::Kind kind, const Arguments& given) {
  Calls& calls = rows_of(kind);
  Tensors tensors;
  if (calls.empty() || given.stream != Py_None ||
      !reader_.read_input(given.input, &tensors.input) || !read_routing(given.routing, &tensors) ||
      !epilogues_.read(given.epilogue, &tensors.epilogue)) {
    return answer(Py_None);
  }
  const auto call = find(calls, given, tensors);
  if (call == nullptr) return answer(Py_None);
  const Plan& plan = *call->plan;
  MemoryRange out;
  py::object output = output_for(*call, given.out, &out);
  const MemoryRange in{range_of(tensors.input).begin, plan.input_bytes()};
  if (!output || !may_write(plan, range_of(tensors.input), out) ||
      (tensors.epilogue.given && !writes_apart(tensors.epilogue, plan, out, {in, {}, {}}))) {
    return answer(Py_None);
  }
  RoutingOfCall routing(plan, tensors.ids, tensors.experts);
  if (routing.is_wrong()) return answer(Py_None);

  const int threads = threads_of(given);
  const bool reduces = kind == Plan::Kind::kReduceScatter;
  const kernels::Epilogue steps = call->epilogue.steps(tensors.epilogue);
  const kernels::Epilogue* const epilogue = tensors.epilogue.given ? &steps : nullptr;
  auto* const target = const_cast<std::byte*>(out.begin);
  const bool done = handle_->call([&](Engine& engine) {
    size_t offset = 0;
    const auto window = engine.find(in.begin, &offset);
    if (window == nullptr) {
      return reduces ? engine.reduce_scatter_staged(plan, in.begin, target, threads, routing.get(),
                                                    epilogue)
                     : engine.all_gather_staged(plan, in.begin, target, threads);
    }
    return reduces ? engine.reduce_scatter(plan, *window, offset, target, threads, routing.get(),
                                           epilogue)
                   : engine.all_gather(plan, *window, offset, target, threads);
  });
  return done ? output.release().ptr() : answer(Py_False);
}

PyObject* KnownCalls::run_combine(const Arguments& given, PyObject* weights, PyObject* index,
                                  PyObject* scale) {
  Tensors tensors;
  if (combines_.empty() || given.stream != Py_None ||
      (scale != Py_None && PyFloat_CheckExact(scale) == 0) ||
      !reader_.read_input(given.input, &tensors.input) || !read_routing(given.routing, &tensors)) {
    return answer(Py_None);
  }
  py::object own_weights;
  if (given.routing != Py_None) {
    // Weights given twice, or for rows that are sums already, are wrong.
    own_weights = py::handle(given.routing).attr(weights_name_);
    const bool summed = tensors.input.dims == 2 && index == Py_None;
    if (weights != Py_None && (summed || !own_weights.is_none())) return answer(Py_None);
    if (weights == Py_None && !summed) weights = own_weights.ptr();
  }
  if ((weights != Py_None && !reader_.read_input(weights, &tensors.weights)) ||
      (index != Py_None && !reader_.read_result(index, &tensors.index)) ||
      !epilogues_.read(given.epilogue, &tensors.epilogue)) {
    return answer(Py_None);
  }
  const auto call = find(combines_, given, tensors);
  if (call == nullptr) return answer(Py_None);
  const CombineInputs inputs{range_of(tensors.input), range_of(tensors.weights),
                             range_of(tensors.index)};
  MemoryRange out;
  py::object output = output_for(*call, given.out, &out);
  if (!output ||
      (tensors.epilogue.given && !writes_apart(tensors.epilogue, *call->plan, out, inputs))) {
    return answer(Py_None);
  }
  RoutingOfCall routing(*call->plan, tensors.ids, tensors.experts);
  if (routing.is_wrong()) return answer(Py_None);

  kernels::TopkReduceArgs sum = call->sum;
  sum.input = tensors.input.data;
  sum.weights = tensors.weights.data;
  sum.index = tensors.index.data;
  sum.has_scale = scale != Py_None;
  if (sum.has_scale) sum.scale = fp32_of(PyFloat_AS_DOUBLE(scale));
  const int threads = threads_of(given);
  const kernels::Epilogue steps = call->epilogue.steps(tensors.epilogue);
  switch (handle_->call([&](Engine& engine) {
    return engine.combine(*call->plan, sum, inputs, const_cast<std::byte*>(out.begin), threads,
                          routing.get(), tensors.epilogue.given ? &steps : nullptr);
  })) {
    case Combined::kDone:
      return output.release().ptr();
    case Combined::kNoWindow:
      return answer(Py_False);
    case Combined::kUnready:
      break;
  }
  return answer(Py_None);
}

}  // namespace symmoe::bindings
