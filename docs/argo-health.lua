-- The health of a Pipeline for Argo CD, from its status (operator.md).
local health = {status = "Progressing", message = "the operator has not seen it yet"}
if obj.status == nil or obj.status.phase == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return health
end
local words = {
  Running = "Healthy", Starting = "Progressing", Upgrading = "Progressing", Suspended = "Suspended",
  Operating = "Progressing", Waiting = "Progressing",
  Paused = "Suspended", RolledBack = "Degraded", Failing = "Degraded", Stalled = "Degraded", Invalid = "Degraded"
}
health.status = words[obj.status.phase] or "Unknown"
health.message = obj.status.phase
local failing = {
  Accepted = "False", RolledBack = "True", Stalled = "True", Ready = "False", DependenciesReady = "False"
}
for _, condition in ipairs(obj.status.conditions or {}) do
  if (health.status == "Degraded" or obj.status.phase == "Waiting") and failing[condition.type] == condition.status then
    health.message = condition.reason .. ": " .. (condition.message or "")
    break
  end
end
return health
